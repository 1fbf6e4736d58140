//! What is handed over as a drive without the kernel, and is none. Real ones are served in guests.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

use api::{Drive, NewDrive, Problem, Rest, api_path};

use crate::harness::Home;

const CONFIG: &str = "[[drive]]\nname = \"calm\"\nbackend = \"memory\"\nsize = \"16MiB\"\n\
                      [[tenant]]\nname = \"db\"\nsize = \"8MiB\"\n";

fn problem(added: anyhow::Result<Drive>) -> Problem {
    added.unwrap_err().downcast::<Problem>().unwrap()
}

#[test]
fn descriptors_that_are_not_vfios_are_refused_and_nothing_is_left_of_them() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    let rest = Rest::new(api_path(&home.runtime_dir()));
    let new = NewDrive {
        name: "fast".to_owned(),
        backend: "nvme".to_owned(),
        address: Some("0000:03:00.0".to_owned()),
        ..NewDrive::default()
    };
    let null = File::open("/dev/null").unwrap();
    let handed_over = |count: usize| problem(rest.add_drive(&new, &vec![null.as_fd(); count]));
    for count in [0, 1, 2] {
        assert_eq!(handed_over(count).code, "no-descriptor", "{count}");
    }
    let told = handed_over(3);
    assert!(told.code == "not-usable" && told.title.contains("0000:03:00.0"), "{told:?}");
    let no_address = NewDrive { address: None, ..new.clone() };
    let three: [BorrowedFd<'_>; 3] = [null.as_fd(); 3];
    let told = problem(rest.add_drive(&no_address, &three));
    assert!(told.code == "invalid" && told.title.contains("address"), "{told:?}");

    let names: Vec<String> = rest.drives().unwrap().into_iter().map(|drive| drive.name).collect();
    assert_eq!(names, ["calm"]);
    home.load("db", "--rw randwrite --bs 4k --size 4m --verify").expect_clean();
    daemon.stop();
}
