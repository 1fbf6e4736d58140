//! A tenant never gets another range: what operators do to a configuration, against a recorded layout.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use config::{Config, Prepared, Summary};
use fastrand::Rng;
use layout::{Change, DeviceIdentity, Layout, LayoutError, LayoutFile};

use crate::seeds::for_each_seed;

const MIB: u64 = 1 << 20;

/// A configuration with these tenants: name, MiB, and more lines.
fn config(tenants: &[(&str, u64, &str)]) -> Config {
    let mut text = "[device]\nbackend = \"file\"\npath = \"/drive.img\"\n".to_owned();
    for (name, mib, more) in tenants {
        text += &format!("[[tenant]]\nname = \"{name}\"\nsize = \"{mib}MiB\"\n{more}\n");
    }
    Config::parse(Path::new("ek.toml"), &text).unwrap_or_else(|e| panic!("{e}"))
}

fn device(mib: u64) -> DeviceIdentity {
    DeviceIdentity { path: "/drive.img".into(), size_bytes: mib * MIB, ..Default::default() }
}

fn plan(config: &Config, mib: u64, recorded: Option<&Layout>) -> (Layout, Vec<Change>) {
    config.plan_layout(&device(mib), recorded).unwrap_or_else(|e| panic!("{e}"))
}

fn refusal(config: &Config, mib: u64, recorded: &Layout) -> String {
    config.plan_layout(&device(mib), Some(recorded)).expect_err("a contradiction").to_string()
}

fn offsets_mib(layout: &Layout) -> Vec<(&str, u64)> {
    layout.placements().iter().map(|p| (p.name.as_str(), p.offset_bytes() / MIB)).collect()
}

#[test]
fn tenants_are_placed_in_order() {
    let (layout, changes) = plan(&config(&[("a", 4, ""), ("b", 8, ""), ("c", 4, "")]), 64, None);
    assert_eq!(offsets_mib(&layout), [("a", 0), ("b", 4), ("c", 12)]);
    assert_eq!(changes.len(), 3);
    assert_eq!(layout.free_bytes(), 48 * MIB);
}

#[test]
fn reordering_moves_nobody() {
    let (first, _) = plan(&config(&[("a", 4, ""), ("b", 8, ""), ("c", 4, "")]), 64, None);
    let (second, changes) = plan(&config(&[("c", 4, ""), ("a", 4, ""), ("b", 8, "")]), 64, Some(&first));
    assert_eq!(second, first);
    assert_eq!(changes, []);
}

#[test]
fn a_removed_tenant_keeps_its_range_and_finds_it_again() {
    let (first, _) = plan(&config(&[("a", 4, ""), ("b", 8, "")]), 64, None);
    let (second, changes) = plan(&config(&[("a", 4, ""), ("new", 8, "")]), 64, Some(&first));
    assert_eq!(offsets_mib(&second), [("a", 0), ("b", 4), ("new", 12)]);
    assert!(matches!(&changes[..], [Change::Reserved(b), Change::Placed(new)] if b.name == "b" && new.name == "new"));
    let (third, changes) = plan(&config(&[("b", 8, ""), ("new", 8, ""), ("a", 4, "")]), 64, Some(&second));
    assert_eq!(third, second);
    assert_eq!(changes, []);
}

#[test]
fn a_freed_range_is_used_again() {
    let (first, _) = plan(&config(&[("a", 4, ""), ("b", 8, ""), ("c", 4, "")]), 64, None);
    let (kept, _) = plan(&config(&[("a", 4, ""), ("c", 4, "offset = \"12MiB\"")]), 64, None);
    assert_eq!(first.find("c"), kept.find("c"));
    let (layout, _) = plan(&config(&[("a", 4, ""), ("c", 4, ""), ("d", 2, ""), ("e", 9, "")]), 64, Some(&kept));
    assert_eq!(offsets_mib(&layout), [("a", 0), ("d", 4), ("c", 12), ("e", 16)]);
}

#[test]
fn chosen_places_come_before_found_ones() {
    let (layout, _) = plan(&config(&[("a", 4, ""), ("b", 4, "offset = 0")]), 64, None);
    assert_eq!(offsets_mib(&layout), [("b", 0), ("a", 4)]);
}

#[test]
fn new_tenants_start_on_a_whole_mib() {
    let odd = config(&[("a", 4, "offset = 4096"), ("b", 1, ""), ("c", 4, "")]);
    let (layout, _) = plan(&odd, 64, None);
    assert_eq!(layout.find("b").map(layout::Placement::offset_bytes), Some(5 * MIB));
    assert!(layout.placements().iter().all(|p| p.name == "a" || p.offset_bytes() % MIB == 0));
}

#[test]
fn contradictions_are_told_with_their_lines() {
    let (recorded, _) = plan(&config(&[("a", 4, ""), ("b", 8, "")]), 64, None);
    let cases = [
        (
            config(&[("a", 3, ""), ("b", 8, "")]),
            64,
            "ek.toml:6:8: tenant \"a\" has 4MiB on the drive, not 3MiB; write size = \"4MiB\"; a disk can grow and not \
             shrink, so for a smaller one add a tenant with a new name and copy the data inside a guest",
        ),
        (
            config(&[("a", 4, ""), ("b", 61, "")]),
            64,
            "ek.toml:10:8: no room for tenant \"b\" to grow from 8MiB to 61MiB: 52MiB more is available; write \
             size = \"8MiB\", or make the device larger",
        ),
        (
            config(&[("a", 4, ""), ("b", 8, "offset = \"32MiB\"")]),
            64,
            "ek.toml:11:10: tenant \"b\" is at 4MiB on the drive, not at 32MiB; write offset = \"4MiB\", or remove it",
        ),
        (
            config(&[("a", 4, ""), ("b", 8, "")]),
            63,
            "ek.toml:3:8: /drive.img has 63MiB, it had 64MiB before; restore the drive's old size; if it was shrunk \
             on purpose behind the last tenant, write the new size_bytes into the layout file",
        ),
        (
            config(&[("c", 4, "offset = \"2MiB\"")]),
            64,
            "ek.toml:7:10: the range of tenant \"c\" is taken: tenant \"a\" has 4MiB at 0; choose another offset, or \
             remove it to have a place chosen",
        ),
        (
            config(&[("c", 4, "offset = \"61MiB\"")]),
            64,
            "ek.toml:7:10: the range of tenant \"c\" ends at 65MiB, behind the device's end at 64MiB; choose a smaller \
             offset, or remove it to have a place chosen",
        ),
        (
            config(&[("c", 53, "")]),
            64,
            "ek.toml:6:8: no room for tenant \"c\" of 53MiB: at most 52MiB is available; make it smaller, or the \
             device larger, or free what 2 tenants that are not configured hold (12MiB) by `evenkeel disk delete`",
        ),
    ];
    for (config, mib, message) in cases {
        let shown = refusal(&config, mib, &recorded);
        assert_eq!(shown.lines().next(), Some(message));
    }
}

#[test]
fn another_drive_is_refused_and_a_moved_one_is_not() {
    let tenants = config(&[("a", 4, "")]);
    let drive = |path: &str, id: &str| DeviceIdentity {
        path: path.into(),
        id: Some(id.into()),
        size_bytes: 64 * MIB,
        ..Default::default()
    };
    let (recorded, _) = tenants.plan_layout(&drive("/dev/nvme0n1", "eui.1"), None).expect("room");
    let (_, changes) = tenants.plan_layout(&drive("/dev/nvme1n1", "eui.1"), Some(&recorded)).expect("the same drive");
    assert!(matches!(&changes[..], [Change::DeviceMoved { .. }]));
    let refused = tenants.plan_layout(&drive("/dev/nvme0n1", "eui.2"), Some(&recorded)).expect_err("another drive");
    assert!(refused.to_string().contains("is drive eui.2, its layout was made for drive eui.1"), "{refused}");
}

#[test]
fn a_larger_device_and_a_formatted_tenant_are_noted() {
    let tenants = config(&[("a", 4, "")]);
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("layout.toml");
    let mut file = LayoutFile::open(Some(path.clone())).expect("no file yet");
    file.save(plan(&tenants, 64, None).0).expect("saved");
    file.set_lba_bytes("a", 4096).expect("saved");
    assert!(matches!(file.set_lba_bytes("a", 520), Err(LayoutError::NoSuchTenant { .. })));
    assert!(matches!(file.set_lba_bytes("b", 512), Err(LayoutError::NoSuchTenant { .. })));

    let file = LayoutFile::open(Some(path)).expect("a good file");
    let (layout, changes) = plan(&tenants, 65, file.layout());
    assert_eq!(layout.find("a").map(|p| p.lba_bytes), Some(4096));
    assert!(
        matches!(
            &changes[..],
            [Change::DeviceGrew { .. }, Change::LbaSizeKept { lba_bytes: 4096, configured_bytes: 512, .. }]
        ),
        "{changes:?}"
    );
}

#[test]
fn the_file_is_private_readable_and_survives() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("state/deep/layout.toml");
    let (layout, _) = plan(&config(&[("a", 4, ""), ("b", 8, "")]), 64, None);
    let mut file = LayoutFile::open(Some(path.clone())).expect("no file yet");
    assert_eq!(file.layout(), None);
    file.save(layout.clone()).expect("saved");
    assert_eq!(fs::metadata(&path).expect("the file").permissions().mode() & 0o777, 0o600);
    assert_eq!(LayoutFile::open(Some(path.clone())).expect("a good file").layout(), Some(&layout));
    let text = fs::read_to_string(&path).expect("the file");
    assert!(text.starts_with("# Where each tenant's data lies"), "{text}");
    assert!(text.contains("[[tenant]]\nname = \"b\"\noffset_bytes = 4194304\n"), "{text}");
}

#[test]
fn a_damaged_file_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("layout.toml");
    let (layout, _) = plan(&config(&[("a", 4, ""), ("b", 8, "")]), 64, None);
    let mut file = LayoutFile::open(Some(path.clone())).expect("no file yet");
    file.save(layout.clone()).expect("saved");
    let good = fs::read_to_string(&path).expect("the file");
    let damages = [
        (String::new(), "cut short"),
        (good[..good.len() - 30].to_owned(), "cut short"),
        (good.replace("offset_bytes = 4194304", "offset_bytes = 4096"), "tenant \"a\" and tenant \"b\" overlap"),
        (good.replace("size_bytes = 8388608", "size_bytes = 8388609"), "steps of 4096"),
        (good.replace("size_bytes = 67108864", "size_bytes = 8388608"), "ends behind the device"),
        (good.replace("name = \"b\"", "name = \"a\""), "twice"),
        (good.replace("lba_bytes = 512", "lba_bytes = 520"), "lba_bytes = 520"),
        (good.replace("version = 2", "version = 1"), "its version is 1, and this build knows 2"),
        (
            good.replace("version = 2", "version = 3"),
            "its version is 3, and this build knows 2: a newer evenkeel wrote it",
        ),
        (good.replace("lba_bytes", "lba_size"), "unknown field"),
        (good.replace("offset_bytes = 4194304", "offset_bytes = -4096"), "line "),
        ("\0".repeat(4096), "cut short"),
    ];
    for (text, reason) in damages {
        assert_ne!(text, good, "{reason}");
        fs::write(&path, &text).expect("damaged");
        let refused = LayoutFile::open(Some(path.clone())).expect_err(reason).to_string();
        assert!(refused.contains("is damaged") && refused.contains(reason), "{reason}: {refused}");
        // Nor does a daemon that read the good one replace it.
        assert!(file.set_lba_bytes("a", 4096).is_err(), "{reason}");
        assert_eq!(fs::read_to_string(&path).expect("the file"), text);
    }
}

#[test]
fn a_file_that_someone_else_changed_is_not_overwritten() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("layout.toml");
    let mut file = LayoutFile::open(Some(path.clone())).expect("no file yet");
    let mut other = LayoutFile::open(Some(path.clone())).expect("no file yet");
    file.save(plan(&config(&[("a", 4, "")]), 64, None).0).expect("saved");
    let refused = other.save(plan(&config(&[("b", 4, "")]), 64, None).0).expect_err("a would be lost");
    assert!(matches!(&refused, LayoutError::WouldLose { who, .. } if who == "tenant \"a\""), "{refused}");
    assert_eq!(LayoutFile::open(Some(path)).expect("a good file").layout(), file.layout());
}

/// Any history of configurations: ranges never overlap, stay within the device, and never move.
#[test]
fn histories_keep_every_range() {
    const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let tenants_of = |random: &mut Rng| -> Vec<(&str, u64, String)> {
        let mut chosen: Vec<(&str, u64, String)> = Vec::new();
        for _ in 0..=random.usize(..6) {
            let name = NAMES[random.usize(..NAMES.len())];
            if chosen.iter().all(|(other, ..)| *other != name) {
                // Mostly one size per name, so that most plans are good.
                let mib = 3 + u64::from(name.as_bytes()[0] % 5) + u64::from(random.usize(..20) == 0);
                let more = if random.usize(..8) == 0 {
                    format!("offset = {}", random.usize(..40) * 4096 * 100)
                } else {
                    String::new()
                };
                chosen.push((name, mib, more));
            }
        }
        chosen
    };
    let planned = std::sync::atomic::AtomicUsize::new(0);
    for_each_seed(500, |random| {
        let mut recorded: Option<Layout> = None;
        let mib = 20 + random.usize(..40) as u64;
        for _ in 0..12 {
            let tenants = tenants_of(random);
            let mut text = "[device]\nbackend = \"file\"\npath = \"/drive.img\"\n".to_owned();
            for (name, mib, more) in &tenants {
                text += &format!("[[tenant]]\nname = \"{name}\"\nsize = \"{mib}MiB\"\n{more}\n");
            }
            let Ok(config) = Config::parse(Path::new("ek.toml"), &text) else { continue };
            let Ok((layout, _)) = config.plan_layout(&device(mib), recorded.as_ref()) else { continue };
            planned.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let mut extents: Vec<_> = layout.placements().iter().flat_map(|placement| &placement.extents).collect();
            extents.sort_by_key(|extent| extent.offset_bytes);
            for pair in extents.windows(2) {
                assert!(pair[0].end_bytes() <= pair[1].offset_bytes, "overlap: {layout:?}");
            }
            assert!(extents.iter().all(|extent| extent.end_bytes() <= mib * MIB), "beyond the device: {layout:?}");
            for old in recorded.iter().flat_map(Layout::placements) {
                let now = layout.find(&old.name).expect("nobody is lost");
                let grown = config.tenants.iter().any(|it| it.name == old.name && it.size.0 > old.size_bytes());
                assert!(now == old || grown, "{old:?} became {now:?}");
                assert!((0..old.size_bytes() / 4096).all(|at| now.to_look_up().locate(at * 4096).map(|(at, _)| at)
                    == old.to_look_up().locate(at * 4096).map(|(at, _)| at)));
            }
            for tenant in &config.tenants {
                let placement = layout.find(&tenant.name).expect("every tenant has a range");
                assert_eq!(placement.size_bytes(), tenant.size.0);
                assert!(tenant.offset.is_none_or(|offset| offset.0 == placement.offset_bytes()));
            }
            recorded = Some(layout);
        }
    });
    let planned = planned.into_inner();
    assert!(planned > 1_000 || std::env::var_os("EVENKEEL_SEED").is_some(), "{planned} plans succeeded");
}

fn image_config(dir: &Path, more: &str, tenants: &[&str]) -> Config {
    image_config_with(dir, more, tenants, "")
}

/// The image's configuration, with more sections at its end.
fn image_config_with(dir: &Path, more: &str, tenants: &[&str], sections: &str) -> Config {
    let mut text = format!(
        "runtime_dir = \"{0}/run\"\n[device]\nbackend = \"file\"\npath = \"{0}/drive.img\"\n{more}\n",
        dir.display()
    );
    for name in tenants {
        text += &format!("[[tenant]]\nname = \"{name}\"\nsize = \"4MiB\"\n");
    }
    Config::parse(Path::new("ek.toml"), &(text + sections)).unwrap_or_else(|e| panic!("{e}"))
}

fn names_in(dir: &Path) -> Vec<PathBuf> {
    let mut names: Vec<_> =
        fs::read_dir(dir).expect("directory").map(|e| PathBuf::from(e.expect("entry").file_name())).collect();
    names.sort();
    names
}

#[test]
fn preparing_touches_nothing_and_committing_makes_the_drive() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let wanted = || image_config(dir.path(), "size = \"16MiB\"\ncreate = true", &["a", "b"]);
    let prepared = Prepared::new(wanted()).unwrap_or_else(|e| panic!("{e}"));
    assert!(prepared.host.to_create);
    assert_eq!(names_in(dir.path()), [] as [PathBuf; 0]);

    let (config, layout, lock) = prepared.commit().unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(names_in(dir.path()), ["drive.img", "drive.img.layout.toml"].map(PathBuf::from));
    assert_eq!(fs::metadata(dir.path().join("drive.img")).expect("image").len(), 16 * MIB);
    let first = layout.layout().cloned();

    config.make_directories(None).expect("made");
    let mode = |path: &str| fs::metadata(dir.path().join(path)).expect("made").permissions().mode() & 0o777;
    assert_eq!((mode("run"), mode("run/a")), (0o711, 0o700));

    // While it is served: checking warns, a second daemon is refused.
    let second = Prepared::new(wanted()).unwrap_or_else(|e| panic!("{e}"));
    assert!(second.warnings.iter().any(|w| w.what.contains("in use by another process")), "{:?}", second.warnings);
    let refused = second.commit().expect_err("the drive is locked").to_string();
    assert!(refused.contains("is in use by another process; stop the other daemon"), "{refused}");

    drop(lock);
    let reordered = image_config(dir.path(), "size = \"16MiB\"\ncreate = true", &["b", "c", "a"]);
    let (_, layout, _lock) = Prepared::new(reordered).and_then(Prepared::commit).unwrap_or_else(|e| panic!("{e}"));
    for old in first.iter().flat_map(Layout::placements) {
        assert_eq!(layout.layout().and_then(|now| now.find(&old.name)), Some(old));
    }
}

#[test]
fn what_is_wrong_with_a_drive_is_told() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let image = dir.path().join("drive.img");
    let told = |more: &str| Prepared::new(image_config(dir.path(), more, &["a"])).expect_err("a problem").to_string();

    let shown = told("size = \"16MiB\"");
    assert!(
        shown.contains("drive.img does not exist; write create = true to create it, or: truncate -s 16777216 "),
        "{shown}"
    );
    fs::create_dir(&image).expect("directory");
    assert!(told("").contains("drive.img is a directory; give the path of a regular file"));
    fs::remove_dir(&image).expect("removed");
    fs::write(&image, b"").expect("empty");
    assert!(told("").contains("drive.img is empty; write size"));
    fs::write(&image, b"root:x:0:0").expect("no drive");
    for also in ["", "size = \"16MiB\"", "size = \"16MiB\"\ncreate = true"] {
        let told = told(also);
        assert!(told.contains("drive.img has 10 bytes, and a drive has 4KiB at least; check this file"), "{told}");
        assert!(!told.contains("truncate"), "{told}");
    }
    fs::write(&image, vec![1; 8192]).expect("small");
    assert!(
        told("size = \"16MiB\"")
            .contains("drive.img has 8KiB, less than size = \"16MiB\"; lower size, or grow it: truncate")
    );
    assert!(told("size = \"16MiB\"\ncreate = true").contains("less than size"), "a file with data is never made anew");
    assert!(told("").contains("no room for tenant \"a\" of 4MiB: at most 8KiB is available"));

    let text = format!(
        "runtime_dir = \"{0}/file/run\"\nstate_dir = \"{0}\"\n[device]\nbackend = \"block\"\npath = \"{0}/drive.img\"\n\
         [pollers]\ncpus = [8191]\n[[tenant]]\nname = \"a\"\nsize = \"4MiB\"\n",
        dir.path().display()
    );
    fs::write(dir.path().join("file"), b"").expect("file");
    let config = Config::parse(Path::new("ek.toml"), &text).unwrap_or_else(|e| panic!("{e}"));
    let shown = config.check_host().expect_err("three problems").to_string();
    assert!(shown.contains("drive.img is a regular file; write backend = \"file\""), "{shown}");
    assert!(shown.contains("/file is not a directory; choose another directory"), "{shown}");
    assert!(shown.contains("CPU 8191 is not one that this process may use"), "{shown}");
}

#[test]
fn a_runtime_directory_that_others_can_get_at_is_refused() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let run = dir.path().join("run");
    let told = || {
        let config = image_config(dir.path(), "size = \"16MiB\"\ncreate = true", &["a"]);
        config.check_host().expect_err("a problem").to_string()
    };
    fs::create_dir(&run).expect("directory");
    fs::set_permissions(&run, fs::Permissions::from_mode(0o777)).expect("changed");
    assert!(told().contains("may write to") && told().contains("chmod go-w"), "{}", told());
    fs::remove_dir(&run).expect("removed");
    std::os::unix::fs::symlink("/tmp", &run).expect("link");
    assert!(told().contains("is a link, which may lead anywhere"), "{}", told());
}

#[test]
fn accounts_that_are_not_there_are_told() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let text = format!(
        "runtime_dir = {:?}\n[daemon]\nuser = \"no-such-user\"\n[device]\nbackend = \"memory\"\nsize = \"8MiB\"\n\
         [[tenant]]\nname = \"a\"\nsize = \"4MiB\"\nsocket_group = \"no-such-group\"\n",
        dir.path()
    );
    let config = Config::parse(Path::new("ek.toml"), &text).unwrap_or_else(|e| panic!("{e}"));
    let told = Prepared::new(config).expect_err("two problems").to_string();
    for expected in ["no user \"no-such-user\" on this host; make it (useradd", "no group \"no-such-group\" on this"] {
        assert!(told.contains(expected), "{told}");
    }
}

#[test]
fn data_without_a_layout_file_is_served_only_at_given_offsets() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let image = dir.path().join("drive.img");
    fs::write(&image, vec![7; 8 * MIB as usize]).expect("an image with data");
    let refused = Prepared::new(image_config(dir.path(), "", &["a"])).expect_err("nobody knows whose data this is");
    assert!(refused.to_string().contains("no layout file describes it"), "{refused}");
    let placed = || {
        let text = format!(
            "runtime_dir = \"{0}\"\n[device]\nbackend = \"file\"\npath = \"{0}/drive.img\"\n\
             [[tenant]]\nname = \"a\"\nsize = \"1MiB\"\noffset = \"0\"\n",
            dir.path().display()
        );
        Prepared::new(Config::parse(Path::new("ek.toml"), &text).unwrap_or_else(|e| panic!("{e}")))
    };
    let prepared = placed().unwrap_or_else(|e| panic!("{e}"));
    assert!(prepared.warnings.iter().any(|w| w.what.contains("no layout file describes it")));
    prepared.commit().unwrap_or_else(|e| panic!("{e}"));
    let prepared = placed().unwrap_or_else(|e| panic!("{e}"));
    assert!(prepared.warnings.iter().all(|w| !w.what.contains("no layout file describes it")));
}

#[test]
fn a_layout_whose_image_is_missing_is_not_served_from_an_empty_one() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let config = || image_config(dir.path(), "size = \"8MiB\"\ncreate = true\n", &["a"]);
    let prepared = Prepared::new(config()).unwrap_or_else(|e| panic!("{e}"));
    drop(prepared.commit().unwrap_or_else(|e| panic!("{e}")));
    fs::remove_file(dir.path().join("drive.img")).expect("the image is there");
    let refused = Prepared::new(config()).expect_err("the data is gone");
    assert!(refused.to_string().contains("the image is missing"), "{refused}");
}

#[test]
fn a_layout_file_that_lost_its_tail_is_damaged() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let config = |tenants: &[&str]| image_config(dir.path(), "size = \"8MiB\"\ncreate = true\n", tenants);
    drop(Prepared::new(config(&["a", "b"])).and_then(Prepared::commit).unwrap_or_else(|e| panic!("{e}")));
    let path = dir.path().join("drive.img.layout.toml");
    let whole = fs::read_to_string(&path).expect("the layout was recorded");
    let second = whole.rfind("[[tenant]]").expect("two tenants");
    fs::write(&path, &whole[..second]).expect("cut at a table's border");
    let refused = Prepared::new(config(&["a", "b"])).expect_err("a tenant's range is lost");
    assert!(refused.to_string().contains("cut short"), "{refused}");
}

/// The example with a namespace of two tenants.
fn with_namespace(dir: &Path, tenants: &[&str], nsid: u32) -> Config {
    image_config_with(dir, "size = \"32MiB\"\ncreate = true", tenants, &namespace(nsid))
}

fn namespace(nsid: u32) -> String {
    format!("[[namespace]]\nname = \"logs\"\nsize = \"2MiB\"\nnsid = {nsid}\ntenants = [\"b\"]\nread_only = [\"a\"]\n")
}

#[test]
fn a_namespace_has_its_place_like_a_tenant() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let prepared = Prepared::new(with_namespace(dir.path(), &["a", "b"], 2)).unwrap_or_else(|e| panic!("{e}"));
    let summary = Summary::new(&prepared);
    let json = serde_json::to_value(&summary).expect("JSON");
    let told = &json["namespaces"][0];
    assert_eq!((&told["name"], &told["nsid"]), (&"logs".into(), &2.into()));
    assert_eq!((told["offset_bytes"].as_u64(), told["size_bytes"].as_u64()), (Some(8 * MIB), Some(2 * MIB)));
    let line = "\nnamespace 2 \"logs\": 2MiB at 8MiB, for b, read-only for a\n";
    assert!(summary.to_string().contains(line), "{summary}");

    let (_, layout, lock) = prepared.commit().unwrap_or_else(|e| panic!("{e}"));
    let first = layout.layout().cloned().expect("recorded");
    drop(lock);
    let read = LayoutFile::open(layout.path().map(Path::to_owned)).expect("the file");
    assert_eq!(read.layout(), Some(&first));
    // Neither other tenants nor another identifier move it.
    let next = Prepared::new(with_namespace(dir.path(), &["c", "b", "a"], 7)).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(next.layout.find("logs"), first.find("logs"));
}

#[test]
fn a_namespace_stays_when_its_tenant_leaves_the_file() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (_, mut file, lock) = Prepared::new(with_namespace(dir.path(), &["a", "b"], 2))
        .and_then(Prepared::commit)
        .unwrap_or_else(|e| panic!("{e}"));
    // As if it had been made while the daemon ran.
    let mut layout = file.layout().cloned().expect("recorded");
    assert!(layout.set_settings("logs", &namespace(2)));
    file.save(layout).expect("recorded");
    drop(lock);
    let declared = |tenants: &[&str]| image_config(dir.path(), "size = \"32MiB\"\ncreate = true", tenants);
    let next = Prepared::new(declared(&["a"])).unwrap_or_else(|e| panic!("{e}"));
    let told: Vec<String> = next.warnings.iter().map(|it| it.what.clone()).collect();
    let expected = "namespace \"logs\" is detached from tenants that the configuration does not name any more";
    assert!(told.iter().any(|told| told == expected), "{told:?}");
    let (config, file, _lock) = next.commit().unwrap_or_else(|e| panic!("{e}"));
    let names: Vec<&str> = config.namespaces[0].attachments.iter().map(|it| it.tenant.as_str()).collect();
    assert_eq!(names, ["a"]);
    let recorded = file.layout().and_then(|layout| layout.find("logs")).and_then(|it| it.settings.clone());
    assert_eq!(recorded.as_deref(), Some(namespace(2).replace("\"b\"", "").as_str()));
}

/// An attacker may write to the image's directory, and nowhere else.
#[test]
fn links_and_pipes_in_place_of_files_are_refused() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (image, elsewhere) = (dir.path().join("drive.img"), dir.path().join("elsewhere"));
    let wanted = || image_config(dir.path(), "size = \"16MiB\"\ncreate = true", &["a"]);
    let refused = || Prepared::new(wanted()).and_then(Prepared::commit).expect_err("it is refused").to_string();
    std::os::unix::fs::symlink(&elsewhere, &image).expect("a link to nowhere");
    let told = refused();
    assert!(told.contains("can't create"), "{told}");
    assert!(!elsewhere.exists());
    fs::remove_file(&image).expect("the link");
    let pipe = |at: &Path| {
        rustix::fs::mknodat(rustix::fs::CWD, at, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a pipe");
    };
    pipe(&image);
    let told = refused();
    assert!(told.contains("is neither a file nor a drive"), "{told}");
    fs::remove_file(&image).expect("the pipe");
    pipe(&dir.path().join("drive.img.layout.toml"));
    let told = refused();
    assert!(told.contains("is damaged: it is not a regular file"), "{told}");
}
