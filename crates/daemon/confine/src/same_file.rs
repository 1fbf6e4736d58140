//! Which descriptors are the same open file.

use std::cmp::Ordering;
use std::os::fd::RawFd;

/// `KCMP_FILE` of kcmp(2), which the C library does not name.
const KCMP_FILE: libc::c_int = 0;

/// An order of open files, in which two descriptors are equal if they are of the same one: a copy, or one that came
/// through a socket. It holds as long as they are open.
///
/// # Errors
/// One is not open, or the kernel has no `kcmp` (CONFIG_KCMP).
pub fn compare_files(one: RawFd, other: RawFd) -> std::io::Result<Ordering> {
    let own = std::process::id();
    // SAFETY: numbers only, which the kernel looks up.
    match unsafe { libc::syscall(libc::SYS_kcmp, own, own, KCMP_FILE, one, other) } {
        0 => Ok(Ordering::Equal),
        1 => Ok(Ordering::Less),
        2 => Ok(Ordering::Greater),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn copies_are_the_same_and_others_are_in_an_order() {
        let open = || std::fs::File::open("/dev/null").unwrap();
        let (a, b) = (open(), open());
        let copy = a.try_clone().unwrap();
        let compare = |one: &std::fs::File, other: &std::fs::File| compare_files(one.as_raw_fd(), other.as_raw_fd());
        assert_eq!(compare(&a, &copy).unwrap(), Ordering::Equal);
        let order = compare(&a, &b).unwrap();
        assert!(order != Ordering::Equal && compare(&b, &a).unwrap() == order.reverse());
        assert!(compare_files(-1, a.as_raw_fd()).is_err());
    }
}
