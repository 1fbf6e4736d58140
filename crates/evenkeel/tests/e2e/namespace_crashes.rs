//! The daemon dies at each point of each write of its layout while namespaces are made, attached, grown, detached and
//! deleted: the next one has the old state or the new one, whole, in the layout and on every controller.

use std::collections::BTreeMap;

use api::{Attach, Deletion, DiskPatch, DiskSpec, Rest, api_path};

use crate::crashes::{at_each_passing, run_until_it_dies, wait_until_nothing_is_left};
use crate::guest::pattern;
use crate::harness::Home;
use crate::namespaces::{go_to, wait_for_namespaces};

const MIB: u64 = 1 << 20;
const NAME: &str = "logs";
const CONFIG: &str = "[device]\nbackend = \"file\"\npath = \"HOST/drive.img\"\nsize = \"16MiB\"\ncreate = true\n\
                      [policy]\nname = \"passthrough\"\n\
                      [[tenant]]\nname = \"db\"\nsize = \"1MiB\"\n\
                      [[tenant]]\nname = \"web\"\nsize = \"1MiB\"\n";

/// Its size in MiB, and whether each of its tenants may only read it. `None`: it is not there.
type State = Option<(u64, BTreeMap<&'static str, bool>)>;

#[derive(Clone, Copy)]
enum Step {
    Create(&'static str),
    Attach(&'static str, bool),
    Grow(u64),
    Detach(&'static str),
    Delete,
}

const STEPS: [Step; 7] = [
    Step::Create("db"),
    Step::Attach("web", true),
    Step::Grow(4),
    Step::Detach("db"),
    Step::Detach("web"),
    Step::Attach("web", false),
    Step::Delete,
];

impl Step {
    fn apply(self, state: &mut State) {
        match (self, state) {
            (Self::Create(tenant), state) => *state = Some((2, BTreeMap::from([(tenant, false)]))),
            (Self::Delete, state) => *state = None,
            (Self::Grow(mib), Some((size_mib, _))) => *size_mib = mib,
            (Self::Attach(tenant, read_only), Some((_, has))) => drop(has.insert(tenant, read_only)),
            (Self::Detach(tenant), Some((_, has))) => drop(has.remove(tenant)),
            (_, None) => {}
        }
    }

    fn run(self, home: &Home) -> anyhow::Result<()> {
        let rest = Rest::new(api_path(&home.runtime_dir()));
        match self {
            Self::Create(tenant) => {
                let (name, size, attach) = (NAME.to_owned(), "2MiB".to_owned(), Some(tenant.to_owned()));
                rest.create(&DiskSpec { name, size, attach, ..DiskSpec::default() })?;
                let mut guest = home.attach(tenant);
                wait_for_namespaces(&mut guest, &[1, 2]);
                go_to(&mut guest, 2, 2);
                guest.write(0, &content()).unwrap();
                Ok(())
            }
            Self::Attach(tenant, read_only) => {
                let attach = Attach { tenant: tenant.to_owned(), read_only, shared: false };
                rest.attach(NAME, &attach).map(drop)
            }
            Self::Grow(mib) => {
                let change = DiskPatch::of(&DiskSpec { size: format!("{mib}MiB"), ..DiskSpec::default() });
                rest.change(NAME, &change).map(drop)
            }
            Self::Detach(tenant) => rest.detach(NAME, tenant).map(drop),
            Self::Delete => {
                rest.delete(NAME, Deletion { force: true, ..Deletion::default() })?;
                wait_until_nothing_is_left(&rest)
            }
        }
    }
}

fn content() -> Vec<u8> {
    pattern(77, MIB as usize)
}

/// What the next daemon says is one of the states, and what its controllers have is the same.
fn check(home: &Home, at: &str, states: &[State; 2]) {
    let daemon = home.serve();
    let rest = Rest::new(api_path(&home.runtime_dir()));
    let disks = rest.disks().unwrap();
    let found = disks.iter().find(|disk| disk.name == NAME);
    let tenant = |name: &str| ["db", "web"].into_iter().find(|known| *known == name).unwrap();
    let has = |disk: &api::Disk| disk.attachments.iter().map(|it| (tenant(&it.tenant), it.read_only)).collect();
    let found: State = found.map(|disk| (disk.size_bytes / MIB, has(disk)));
    assert!(states.contains(&found), "{at}: {found:?} is neither of {states:?}");
    let was_written = states[0].is_some() && found.is_some();
    for tenant in ["db", "web"] {
        let mut guest = home.attach(tenant);
        let attached = found.as_ref().and_then(|(size_mib, has)| Some((*size_mib, *has.get(tenant)?)));
        let Some((size_mib, read_only)) = attached else {
            wait_for_namespaces(&mut guest, &[1]);
            continue;
        };
        wait_for_namespaces(&mut guest, &[1, 2]);
        go_to(&mut guest, 2, size_mib);
        if was_written {
            assert!(guest.read(0, 2048).unwrap() == content(), "{at}: {tenant}");
        }
        assert_eq!(guest.write(2048, &content()).is_err(), read_only, "{at}: {tenant}");
    }
    // And goes on.
    let more = DiskSpec { name: "more".into(), size: "1MiB".into(), attach: Some("db".into()), ..DiskSpec::default() };
    rest.create(&more).unwrap();
    daemon.stop();
}

/// At each passing of one point, until it is not passed so often any more.
fn crash_at(point: usize) {
    let crashes = at_each_passing(point, |at| {
        let home = Home::new();
        home.configure(CONFIG);
        let states = run_until_it_dies(&home, at, &STEPS, Step::apply, |step| step.run(&home))?;
        check(&home, at, &states);
        Some(())
    });
    assert!(crashes > STEPS.len(), "{crashes} crashes only");
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
}
