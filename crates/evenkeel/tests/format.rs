//! A guest formats its namespace.
use nvme_driver::{Controller, VfioUserDevice};
use nvme_spec::Sqe;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

#[test]
fn format_changes_the_block_size() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path().display();
    let config = format!(
        "runtime_dir = \"{d}\"\nstate_dir = \"{d}\"\n[device]\nbackend = \"file\"\npath = \"{d}/drive.img\"\nsize = \"2GiB\"\ncreate = true\n[policy]\nname = \"passthrough\"\n[[tenant]]\nname = \"batch\"\nsize = \"1GiB\"\n"
    );
    std::fs::write(dir.path().join("c.toml"), config).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_evenkeel"))
        .arg("serve")
        .arg("--json")
        .arg(dir.path().join("c.toml"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let mut controller = Controller::start(VfioUserDevice::connect(&dir.path().join("batch")).unwrap()).unwrap();
    println!("{:?}", controller.first_namespace());
    let t = std::time::Instant::now();
    let r = controller.admin().run("format", Sqe { opc: 0x80, nsid: 1, cdw10: 1, ..Sqe::default() }, None);
    println!("{r:?} {:?}", t.elapsed());
    println!("{:?}", controller.first_namespace());
    drop(controller);
    child.kill().unwrap();
    r.unwrap();
}
