//! The daemon dies at each point of each write of its layout: the next one has the old state or the new one, whole.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use api::{Deletion, DiskPatch, DiskSpec, DiskState, Rest, api_path};
use layout::CRASH_POINTS;

use crate::guest::pattern;
use crate::harness::{Daemon, Home, wait_for};

const MIB: u64 = 1 << 20;
const DRIVE_MIB: u64 = 24;

/// The drive holds what nobody knows: what disks get of it is zeroed first.
const CONFIG: &str = "[device]\nbackend = \"file\"\npath = \"HOST/drive.img\"\nsize = \"24MiB\"\n\
                      [policy]\nname = \"passthrough\"\n\
                      [[tenant]]\nname = \"file\"\nsize = \"1MiB\"\noffset = \"0\"\n";

/// The size in MiB and the weight of each disk that was made.
type State = BTreeMap<&'static str, (u64, u32)>;

/// One change; then its state holds.
#[derive(Clone, Copy)]
enum Step {
    Create(&'static str, u64),
    Weigh(&'static str, u32),
    Grow(&'static str, u64),
    Delete(&'static str),
}

const STEPS: [Step; 7] = [
    Step::Create("a", 2),
    Step::Create("b", 2),
    Step::Create("c", 1),
    Step::Weigh("a", 7),
    Step::Delete("b"),
    // Into what `b` left, and behind `c`.
    Step::Grow("a", 6),
    Step::Create("d", 3),
];

impl Step {
    fn apply(self, state: &mut State) {
        match self {
            Self::Create(name, mib) => drop(state.insert(name, (mib, 1))),
            Self::Weigh(name, weight) => state.entry(name).or_default().1 = weight,
            Self::Grow(name, mib) => state.entry(name).or_default().0 = mib,
            Self::Delete(name) => drop(state.remove(name)),
        }
    }

    /// Does it, and waits until nothing of it is left to be done.
    fn run(self, home: &Home) -> anyhow::Result<()> {
        let rest = Rest::new(api_path(&home.runtime_dir()));
        let size = |mib: u64| format!("{mib}MiB");
        match self {
            Self::Create(name, mib) => {
                rest.create(&DiskSpec { name: name.into(), size: size(mib), ..DiskSpec::default() })?;
            }
            Self::Weigh(name, weight) => {
                rest.change(name, &DiskPatch::of(&DiskSpec { weight: Some(weight), ..DiskSpec::default() }))?;
            }
            Self::Grow(name, mib) => {
                rest.change(name, &DiskPatch::of(&DiskSpec { size: size(mib), ..DiskSpec::default() }))?;
            }
            Self::Delete(name) => drop(rest.delete(name, Deletion::default())?),
        }
        wait_until_nothing_is_left(&rest)?;
        if let Self::Create(name, mib) = self {
            let mut guest = home.attach(name);
            (0..mib).for_each(|at| guest.write(at * MIB / 512, &content(name, at)).unwrap());
        }
        Ok(())
    }
}

fn content(name: &str, at_mib: u64) -> Vec<u8> {
    pattern(u64::from(name.as_bytes()[0]) << 16 | at_mib, MIB as usize)
}

fn home() -> Home {
    let home = Home::new();
    let image = File::create(home.path("drive.img")).unwrap();
    image.write_all_at(&vec![0xee; (DRIVE_MIB * MIB) as usize], 0).unwrap();
    home.configure(CONFIG);
    home
}

/// Waits for the end of what the daemon does by itself, or of the daemon.
pub fn wait_until_nothing_is_left(rest: &Rest) -> anyhow::Result<()> {
    let mut ended = Ok(());
    wait_for("the rest of a change", || match rest.operations() {
        Ok(left) => left.is_empty().then_some(()),
        Err(error) => {
            ended = Err(error);
            Some(())
        }
    });
    ended
}

/// The states before and after the step at which it died; `None`: it did not.
pub fn run_until_it_dies<Step: Copy, State: Clone + Default>(
    home: &Home,
    at: &str,
    steps: &[Step],
    apply: impl Fn(Step, &mut State),
    run: impl Fn(Step) -> anyhow::Result<()>,
) -> Option<[State; 2]> {
    let mut state = State::default();
    // It dies as it is meant to; a line of the standard library says so.
    let Ok(daemon) = home.try_serve(&home.config(), &[("EVENKEELD_CRASH_AT", at)]) else {
        return Some([State::default(), State::default()]);
    };
    for step in steps {
        let before = state.clone();
        apply(*step, &mut state);
        if run(*step).is_err() {
            return Some([before, state]);
        }
    }
    daemon.stop();
    None
}

fn state(rest: &Rest) -> State {
    let known = STEPS.iter().filter_map(|step| if let Step::Create(name, _) = step { Some(*name) } else { None });
    let disks = rest.disks().unwrap();
    let found = known.filter_map(|name| {
        let disk = disks.iter().find(|disk| disk.name == name)?;
        let size_bytes = disk.grows_to_bytes.unwrap_or(disk.size_bytes);
        Some((name, (size_bytes / MIB, disk.weight.unwrap_or_default())))
    });
    let found: State = found.collect();
    assert_eq!(disks.len(), found.len() + 1, "and the file's: {disks:?}");
    found
}

/// What the next daemon has is one of the states, and works.
fn check(home: &Home, at: &str, states: &[State; 2]) {
    let daemon: Daemon = home.serve();
    let rest = Rest::new(api_path(&home.runtime_dir()));
    let found = state(&rest);
    assert!(states.contains(&found), "{at}: {found:?} is neither of {states:?}");
    let is_settled = || {
        let served = |disk: &api::Disk| disk.state == DiskState::Served && disk.grows_to_bytes.is_none();
        (rest.operations().unwrap().is_empty() && rest.disks().unwrap().iter().all(served)).then_some(())
    };
    wait_for("what was begun to end", is_settled);
    for (name, (mib, _)) in &found {
        let mut guest = home.attach(name);
        assert_eq!(guest.ns.size_bytes(), mib * MIB, "{at}: {name}");
        for at_mib in 0..*mib {
            let data = guest.read(at_mib * MIB / 512, 2048).unwrap();
            let is_blank = data.iter().all(|byte| *byte == 0);
            // The last one to be made may not have been written yet; what `a` grew by never was.
            assert!(data == content(name, at_mib) || is_blank, "{at}: MiB {at_mib} of {name}");
            let was_written = states[0].contains_key(name) && !(*name == "a" && at_mib >= 2);
            assert!(!is_blank || !was_written, "{at}: MiB {at_mib} of {name} is lost");
        }
    }
    if !found.contains_key("b") && states[0].contains_key("c") {
        let image = std::fs::read(home.path("drive.img")).unwrap();
        let secret = content("b", 1);
        assert!(!image.chunks(512).any(|sector| secret.chunks(512).any(|piece| piece == sector)), "{at}: `b` is there");
    }
    // And goes on.
    Step::Create("e", 2).run(home).unwrap();
    daemon.stop();
}

/// Has a trial die at each passing of one point, until it passes it not so often any more and says `None`. How often it
/// died.
pub fn at_each_passing(point: usize, trial: impl Fn(&str) -> Option<()>) -> usize {
    (1..).take_while(|passed| trial(&format!("{}:{passed}", CRASH_POINTS[point])).is_some()).count()
}

fn crash_at(point: usize) {
    let crashes = at_each_passing(point, |at| {
        let home = home();
        let states = run_until_it_dies(&home, at, &STEPS, Step::apply, |step| step.run(&home))?;
        check(&home, at, &states);
        Some(())
    });
    assert!(crashes >= 10, "{crashes} crashes only");
}

#[test]
fn before_the_layout_is_written() {
    crash_at(0);
}

#[test]
fn when_half_of_it_is_written() {
    crash_at(1);
}

#[test]
fn when_it_is_written_and_not_in_its_place() {
    crash_at(2);
}

#[test]
fn when_it_is_in_its_place_and_that_is_not_durable() {
    crash_at(3);
}

#[test]
fn when_it_is_durable_and_nobody_knows() {
    crash_at(4);
    assert_eq!(CRASH_POINTS.len(), 5);
}
