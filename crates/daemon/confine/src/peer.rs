//! The groups of the process at the other end of a socket.

use std::os::fd::{AsRawFd, BorrowedFd};

/// As many as a process can have (NGROUPS_MAX of getgroups(2)).
const MOST: usize = 65_536;

/// The supplementary groups that a Unix socket's peer had when it connected (SO_PEERGROUPS of unix(7)); its effective
/// one is among its credentials. None where the kernel doesn't tell: it is asked whom to let in, not whom to refuse.
pub fn groups_of_peer(socket: BorrowedFd<'_>) -> Vec<u32> {
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let mut len_bytes = size_of_val(&groups[..]) as libc::socklen_t;
        // SAFETY: the kernel writes at most `len_bytes` to the vector, which has them, and the length to a local.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut len_bytes,
            )
        };
        let count = len_bytes as usize / size_of::<libc::gid_t>();
        if result == 0 {
            groups.truncate(count);
            return groups;
        }
        // Too few: the length says how many there are.
        let is_short = std::io::Error::last_os_error().raw_os_error() == Some(libc::ERANGE);
        if !is_short || count <= groups.len() || count > MOST {
            return Vec::new();
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_peer_has_its_groups() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut wanted: Vec<u32> = rustix::process::getgroups().unwrap().iter().map(|group| group.as_raw()).collect();
        let mut found = groups_of_peer(ours.as_fd());
        wanted.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, wanted);
        let other = std::fs::File::open("/dev/null").unwrap();
        assert!(groups_of_peer(other.as_fd()).is_empty(), "not a socket");
    }
}
