//! What a daemon has too little of is named, with what to do: open files, CPUs, a tenant's mappings.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::Value;

use crate::disks::{disk, done, refused};
use crate::harness::{Home, errors, evenkeel, run, wait_for};

const CONFIG: &str = "[device]\nbackend = \"memory\"\nsize = \"64MiB\"\n[policy]\nname = \"passthrough\"\n\
                      [[tenant]]\nname = \"db\"\nsize = \"8MiB\"\n";

#[test]
fn too_few_open_files_are_told_at_the_start_and_when_a_disk_comes() {
    let home = Home::new();
    home.configure(CONFIG);
    let remedy = config::MORE_OPEN_FILES;
    let program = evenkeel();
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -n 16 && exec \"$0\" serve \"$1\""]).arg(program.get_program()).arg(home.config());
    let output = shell.stdin(Stdio::null()).output().unwrap();
    let told = errors(&output);
    assert!(!output.status.success() && told.contains("Too many open files"), "{told}");
    assert!(told.contains("the daemon may have 16 files open") && told.contains(remedy), "{told}");

    let daemon = home.serve();
    let pid = Pid::from_raw(daemon.id() as i32);
    // One number is free: who asks takes it.
    let open = std::fs::read_dir(format!("/proc/{}/fd", daemon.id())).unwrap();
    let numbers: BTreeSet<u64> = open.map(|of| of.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    let mut free = (0..).filter(|number| !numbers.contains(number));
    let most = getrlimit(Resource::Nofile).maximum;
    prlimit(pid, Resource::Nofile, Rlimit { current: free.nth(1), maximum: most }).unwrap();
    let told = errors(&disk(&home, "create web --size 8MiB"));
    assert!(told.contains("Too many open files") && told.contains(remedy), "{told}");
    prlimit(pid, Resource::Nofile, Rlimit { current: most, maximum: most }).unwrap();
    assert_eq!(done(&home, "create web --size 8MiB --wait")["state"], "served");
    daemon.stop();
}

#[test]
fn a_cpu_that_is_not_there_is_told_as_for_a_file() {
    let home = Home::new();
    let file = home.configure(&format!("{CONFIG}threads = \"dedicated\"\ncpus = [8000]\n"));
    let output = run(&["check", file.to_str().unwrap()]);
    let told = errors(&output);
    let (_, of_file) = told.split_once("CPU 8000").unwrap_or_else(|| panic!("{told}"));
    let of_file = of_file.lines().next().unwrap_or_default();
    assert!(of_file.contains("; choose from 0"), "{told}");
    home.configure(CONFIG);
    let daemon = home.serve();
    let is_told = |asks: &str| assert!(refused(&home, asks).contains(&format!("CPU 8000{of_file}")), "{asks}");
    is_told("create web --size 8MiB --threads dedicated --cpus 8000");
    assert_eq!(done(&home, "create web --size 8MiB")["name"], "web");
    is_told("set web --threads dedicated --cpus 8000");
    daemon.stop();
}

/// Each job has a queue of its own.
#[test]
fn a_client_with_many_queues_needs_few_mappings() {
    let home = Home::new();
    home.configure(&format!("{CONFIG}queues = 64\nmax_maps = 4\n"));
    let daemon = home.serve();
    let mut load = evenkeel();
    load.arg("load").arg(home.runtime_dir().join("db")).args(["--threads", "1", "--yield", "always"]);
    let jobs = "--rw randrw --bs 4k --numjobs 64 --iodepth 16 --verify --runtime 200ms";
    let output = load.args(jobs.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "{}", errors(&output));
    assert!(!daemon.log().contains("max_maps"), "{}", daemon.log());
    let (code, told) = home.load("db", "--rw read --bs 4k --numjobs 64 --idle-queues 1 --runtime 1s").end();
    let told = told.to_string();
    assert!(code == Some(2) && told.contains("65 are asked for, the controller has 64 left"), "{code:?}: {told}");
    daemon.stop();
}

/// A poller that never sleeps has the same CPU: the other one waits for it in half of the time.
#[test]
fn who_waits_for_a_poller_without_a_cpu_is_not_told_that_it_is_the_drive() {
    let home = Home::new();
    home.configure(
        "[device]\nbackend = \"model\"\nprofile = \"p5800x\"\nsize = \"64MiB\"\n[policy]\nname = \"evenkeel\"\n\
         [pollers]\ncpus = [0]\n\
         [[tenant]]\nname = \"db\"\nsize = \"8MiB\"\nclass = \"guaranteed\"\nlatency_target = \"100ms\"\n\
         frontend = \"vhost-user-blk\"\nmode = \"polling\"\n\
         [[tenant]]\nname = \"batch\"\nsize = \"8MiB\"\n",
    );
    let daemon = home.serve();
    let load = home.load("batch", "--rw randread --bs 4k --iodepth 64 --runtime 600s");
    let runtime_dir = home.runtime_dir();
    let stats = ["stats", "--once", "--json", "--runtime-dir", runtime_dir.to_str().unwrap()];
    wait_for("what holds it back", || {
        let told: Value = serde_json::from_slice(&run(&stats).stdout).unwrap();
        let batch = told["tenants"].as_array()?.iter().find(|row| row["name"] == "batch")?;
        (batch["held"]["by"] == "cpu").then_some(())
    });
    load.kill();
    daemon.stop();
}
