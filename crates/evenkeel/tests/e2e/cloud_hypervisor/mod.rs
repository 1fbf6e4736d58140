//! Cloud Hypervisor's vfio-user client (the published crate `vfio_user`), whose daemon is killed again and again.
//!
//! [`vmm`] does what Cloud Hypervisor does with that client, [`driver`] what its guest does. There is no KVM.

mod driver;
mod vmm;

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use hostile::victim::{Life, Plan, Victim};
use test_clients::seeds;

use self::driver::{DEPTH, Driver};
use self::vmm::{BAR0, Vmm};
use crate::harness::{Home, wait_for};
use crate::keeper::kept_with;

/// One client with doorbells that it maps and 65 interrupts. One with doorbells that are messages, and fewer queues
/// than the table of interrupts has room for.
const CONFIG: &str = "[device]\nbackend = \"file\"\npath = \"HOST/drive.img\"\ncreate = true\nsize = \"64MiB\"\n\
                      [policy]\nname = \"evenkeel\"\n\
                      [[tenant]]\nname = \"mapped\"\nsize = \"16MiB\"\n\
                      [[tenant]]\nname = \"trapped\"\nsize = \"16MiB\"\ndoorbells = \"trapped\"\nqueues = 4\n";
const TENANTS: [&str; 2] = ["mapped", "trapped"];
/// How many times as many kills as planned there are until one of them hits a command in flight.
const KILLS_MORE: u32 = 10;

#[test]
fn its_client_goes_on_after_kills() {
    goes_on_after(4);
}

/// Not among the daily tests.
#[test]
fn its_client_goes_on_after_200_kills() {
    goes_on_after(200);
}

/// The crate's fault, which the watchdog must notice: it expects more than the header that says that it was refused.
#[test]
fn its_client_stalls_where_a_register_access_is_refused() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    let mut vmm = Vmm::attach(&home.runtime_dir().join("mapped/cntrl")).unwrap();
    vmm.limit = Duration::from_millis(100);
    let stalled = vmm.read::<4>(BAR0, 1 << 32).unwrap_err().to_string();
    assert!(stalled.contains("region read: the client stalls"), "{stalled}");
    daemon.stop();
}

fn goes_on_after(planned: u32) {
    for seed in seeds(1) {
        let (home, _keeper) = kept_with(CONFIG);
        let mut daemon = home.serve();
        // Nobody tells the clients of a kill: all that they see counts.
        let life = Arc::<Life>::default();
        let victims = TENANTS.map(|name| {
            let directory = home.runtime_dir().join(name);
            let plan = Plan { name, directory, depth: DEPTH, pause: Duration::ZERO, seed };
            Victim::start_on(Driver::attach, plan, Arc::clone(&life)).unwrap()
        });
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut kills, mut taken_over, mut commands, mut longest_pause) = (0, 0, [0; 2], Duration::ZERO);
        while kills < planned || (taken_over == 0 && kills < planned * KILLS_MORE) {
            // Not to wait for anything: for messages and commands to be on their way at ever other instants.
            sleep(Duration::from_millis(random.u64(0..120)));
            taken_over += daemon.log().lines().filter_map(commands_taken_over).sum::<u64>();
            let killed = Instant::now();
            drop(daemon);
            kills += 1;
            add_commands(&victims, &mut commands);
            let before = commands;
            daemon = home.serve();
            // Else the next one may hit it while it takes its clients over.
            if random.u8(..4) > 0 {
                wait_for("a command of each client", || {
                    add_commands(&victims, &mut commands);
                    let mut served = victims.iter().zip(commands.iter().zip(before));
                    served.all(|(victim, (now, before))| *now > before || victim.has_ended()).then_some(())
                });
                longest_pause = longest_pause.max(killed.elapsed());
            }
        }
        add_commands(&victims, &mut commands);
        for (victim, commands) in victims.into_iter().zip(commands) {
            let name = victim.name;
            let (checked_units, problems) = victim.stop();
            println!("{name}: {commands} commands, {checked_units} units of 4 KiB verified");
            assert_eq!(problems, [] as [String; 0], "{name}");
            assert!(commands > 0 && checked_units > 0, "{name} was not served");
        }
        println!("{kills} kills, {taken_over} commands taken over, longest pause {longest_pause:?}");
        assert!(taken_over > 0, "no kill hit a command in flight");
        daemon.wait_log("the client went away", TENANTS.len());
        daemon.stop();
    }
}

/// Adds what each client completed since the last time.
fn add_commands(victims: &[Victim], commands: &mut [u64]) {
    victims.iter().zip(commands).for_each(|(victim, commands)| *commands += victim.take_figures().commands);
}

fn commands_taken_over(line: &str) -> Option<u64> {
    line.split_once("its controller goes on, ")?.1.split(' ').next()?.parse().ok()
}
