//! A keeper's process, and what is around it: a daemon, clients.

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use client_socket::keeping::wire::{Answer, Framing, Gone, How, MAX_PACKET_BYTES, Request, Said, Told, VERSION};
use client_socket::{Received, receive, send_whole};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Longer than anything takes here.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A word, the length of the whole message, the rest.
pub const FRAMING: Framing =
    Framing { header_bytes: 8, length_at: 4, with_header: true, max_bytes: 100_000, max_fds: 4 };

pub struct Keeper {
    pub dir: TempDir,
    pub child: Child,
    pub manager: Manager,
}

impl Keeper {
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_program(Path::new(env!("CARGO_BIN_EXE_evenkeel-keeper")), arguments, Stdio::inherit())
    }

    /// A keeper with a limit of open files.
    pub fn start_with_open_files(most: u64) -> Self {
        let keeper = env!("CARGO_BIN_EXE_evenkeel-keeper");
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &format!("ulimit -n {most}; exec \"$0\" \"$@\""), keeper]);
        Self::start_command(command, &[], Stdio::inherit())
    }

    pub fn start_program(program: &Path, arguments: &[&str], stderr: Stdio) -> Self {
        Self::start_command(Command::new(program), arguments, stderr)
    }

    fn start_command(mut command: Command, arguments: &[&str], stderr: Stdio) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let manager = Manager::start(&dir.path().join("notify"));
        let child = command
            .arg(dir.path().join("keeper"))
            .args(arguments)
            .env("NOTIFY_SOCKET", dir.path().join("notify"))
            .env("FDSTORE", super::stored::ROOM)
            .stderr(stderr)
            .spawn()
            .unwrap();
        let this = Self { dir, child, manager };
        this.wait_for("READY=1");
        this
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("keeper")
    }

    /// Waits until the service manager is told that.
    pub fn wait_for(&self, what: &str) {
        while self.manager.told.recv_timeout(PATIENCE).expect("the service manager is told something") != what {}
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Whatever the keeper told the service manager is in its store.
    pub fn settle(&self) {
        let socket = UnixDatagram::unbound().unwrap();
        socket.send_to(b"SETTLED=1", self.dir.path().join("notify")).unwrap();
        self.wait_for("SETTLED=1");
    }

    /// Waits until all its threads have done what there was to do, and wait.
    pub fn rests(&self) {
        let tasks = format!("/proc/{}/task", self.child.id());
        let asleep = || -> Option<Vec<String>> {
            let of = |task: std::io::Result<std::fs::DirEntry>| {
                let status = std::fs::read_to_string(task.ok()?.path().join("status")).ok()?;
                let field = |name| status.lines().find(|line| line.starts_with(name)).map(str::to_owned);
                field("State:").filter(|state| state.contains("sleeping")).and(field("voluntary_ctxt_switches:"))
            };
            std::fs::read_dir(&tasks).ok()?.map(of).collect()
        };
        // Several times in a row, and nothing ran in between.
        while !asleep().is_some_and(|before| (0..50).all(|_| asleep().as_ref() == Some(&before))) {}
    }

    /// A device's listening socket, and where it is.
    pub fn listener(&self, name: &str) -> (UnixListener, PathBuf) {
        let path = self.dir.path().join(name);
        let _ = std::fs::remove_file(&path);
        (UnixListener::bind(&path).unwrap(), path)
    }
}

/// The service manager, which has a store.
pub struct Manager {
    pub told: Receiver<String>,
    pub store: Arc<Mutex<Vec<(String, OwnedFd)>>>,
}

impl Manager {
    fn start(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).unwrap();
        let (tell, told) = channel();
        let store = Arc::new(Mutex::default());
        let kept = Arc::clone(&store);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(Received::Bytes(len, fds)) = receive(&socket, &mut bytes, RecvFlags::empty()) {
                let text = String::from_utf8_lossy(&bytes[..len]).into_owned();
                let word = text.lines().find_map(|line| line.strip_prefix("FDNAME=")).map(str::to_owned);
                let mut store = kept.lock().unwrap();
                match (text.lines().next(), &word) {
                    (Some("FDSTORE=1"), Some(word)) => fds.into_iter().for_each(|fd| put(&mut store, word, fd)),
                    (Some("FDSTOREREMOVE=1"), Some(word)) => store.retain(|(stored, _)| stored != word),
                    // Nobody listens any more when the test is over.
                    _ if tell.send(text.clone()).is_err() => return,
                    _ => {}
                }
            }
        });
        Self { told, store }
    }
}

/// One of several copies, as the real one does.
fn put(store: &mut Vec<(String, OwnedFd)>, word: &str, fd: OwnedFd) {
    let is_there = |one: &OwnedFd| confine::compare_files(one.as_raw_fd(), fd.as_raw_fd()).unwrap().is_eq();
    if !store.iter().any(|(_, stored)| is_there(stored)) {
        store.push((word.to_owned(), fd));
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A daemon that says what a test wants.
pub struct Daemon(OwnedFd);

impl Daemon {
    pub fn connect(path: &Path) -> Self {
        let this = Self::connect_silently(path);
        this.hello();
        this
    }

    pub fn connect_silently(path: &Path) -> Self {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(PATIENCE)).unwrap();
        connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        Self(socket)
    }

    pub fn hello(&self) {
        let answer = self.ask(&Request::Hello { version: VERSION }, &[]).0;
        assert_eq!(answer, Answer::Hello { version: VERSION });
    }

    pub fn say(&self, packet: &[u8]) {
        send_whole(&self.0, packet, &[]).unwrap();
    }

    pub fn ask(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> (Answer, Vec<OwnedFd>) {
        send_whole(&self.0, &request.encode(), fds).unwrap();
        self.hear().expect("an answer")
    }

    /// `None`: the keeper closed the socket.
    pub fn hear(&self) -> Option<(Answer, Vec<OwnedFd>)> {
        let (bytes, fds) = packet(&self.0)?;
        Some((Answer::decode(&bytes).expect("an answer"), fds))
    }

    pub fn keep(&self, name: &str, fds: &[BorrowedFd<'_>]) -> Channel {
        let (answer, fds) = self.ask(&Request::Keep(name.into(), FRAMING), fds);
        assert_eq!(answer, Answer::Kept);
        let [channel] = <[OwnedFd; 1]>::try_from(fds).unwrap();
        sockopt::set_socket_timeout(&channel, sockopt::Timeout::Recv, Some(PATIENCE)).unwrap();
        Channel(channel)
    }

    /// Finds a device and keeps it on, as a daemon does that comes after another.
    pub fn take_over(&self, name: &str, had_client: bool) -> Channel {
        let (answer, fds) = self.ask(&Request::Find(name.into()), &[]);
        assert_eq!(answer, Answer::Found { has_client: had_client });
        self.keep(name, &fds.iter().map(AsFd::as_fd).collect::<Vec<_>>())
    }
}

/// `None`: the end.
fn packet(socket: &OwnedFd) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; MAX_PACKET_BYTES];
    match receive(socket, &mut bytes, RecvFlags::empty()) {
        Ok(Received::Bytes(len, fds)) => Some((bytes[..len].to_vec(), fds)),
        Ok(Received::End) | Err(Errno::CONNRESET) => None,
        other => panic!("nothing in time: {other:?}"),
    }
}

/// A daemon's end of a device's channel.
pub struct Channel(pub OwnedFd);

impl Channel {
    pub fn accept(&self) {
        self.say(&Said::Accept);
    }

    pub fn say(&self, said: &Said) {
        send_whole(&self.0, &said.encode(), &[]).unwrap();
    }

    pub fn answer(&self, client: u64, number: u64, keep: bool, bytes: &[u8]) {
        self.say(&Said::Answer { client, number, keep, forget: Vec::new(), bytes: bytes.to_vec() });
    }

    /// `None`: the keeper closed it.
    pub fn hear(&self) -> Option<(Told, Vec<OwnedFd>)> {
        let (bytes, fds) = packet(&self.0)?;
        Some((Told::decode(&bytes).expect("something that is told"), fds))
    }

    pub fn told(&self) -> Told {
        self.hear().expect("the keeper tells something").0
    }

    /// A client is told of; its number.
    pub fn client(&self, held: bool) -> u64 {
        let (told, fds) = self.hear().expect("the keeper tells something");
        assert_eq!(fds.len(), 1, "the client's socket comes along");
        match told {
            Told::Client { client, is_held } if is_held == held => client,
            other => panic!("{other:?}"),
        }
    }

    /// A message is told of; its number, and its descriptors.
    pub fn message(&self, how: How, bytes: &[u8]) -> (u64, Vec<OwnedFd>) {
        match self.hear() {
            Some((Told::Message { number, how: got, bytes: told, .. }, fds)) => {
                assert_eq!((got, &told[..]), (how, bytes));
                (number, fds)
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn restored(&self, client: u64) {
        let told = self.told();
        assert!(matches!(told, Told::Restored { client: whose, .. } if whose == client), "{told:?}");
    }

    pub fn gone(&self, client: u64, why: Gone) {
        assert_eq!(self.told(), Told::Gone { client, why });
    }
}

/// A client that sends and reads what a test wants.
pub struct Client(pub UnixStream);

impl Client {
    pub fn connect(path: &Path) -> Self {
        let socket = UnixStream::connect(path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(socket)
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    pub fn send_with(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        send_whole(&self.0, bytes, fds).unwrap();
    }

    pub fn reads(&mut self, wanted: &[u8]) {
        let mut got = vec![0; wanted.len()];
        self.0.read_exact(&mut got).unwrap();
        assert_eq!(got, wanted);
    }

    pub fn sees_the_end(&mut self) {
        // With what it sent unread, the end is a reset.
        let got = self.0.read(&mut [0; 1]);
        let is_reset = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
        assert!(matches!(&got, Ok(0)) || got.as_ref().is_err_and(is_reset), "{got:?}");
    }
}

/// A message of the framing above.
pub fn message(word: u32, rest: &[u8]) -> Vec<u8> {
    [&word.to_le_bytes()[..], &(8 + rest.len() as u32).to_le_bytes(), rest].concat()
}

pub fn memory() -> OwnedFd {
    memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap()
}

/// One device of several, with a client that the daemon was told of.
pub struct Side {
    pub name: String,
    pub channel: Channel,
    pub client: Client,
    pub number: u64,
}

impl Side {
    pub fn start(keeper: &Keeper, daemon: &Daemon, name: &str) -> Self {
        let (listener, path) = keeper.listener(name);
        let channel = daemon.keep(name, &[listener.as_fd()]);
        channel.accept();
        let client = Client::connect(&path);
        let number = channel.client(false);
        Self { name: name.to_owned(), channel, client, number }
    }
}

/// One device that a daemon has kept, with a client that it was told of.
pub struct Attached {
    pub keeper: Keeper,
    pub daemon: Daemon,
    pub channel: Channel,
    pub client: Client,
    pub number: u64,
    pub path: PathBuf,
}

impl Attached {
    pub fn start(arguments: &[&str]) -> Self {
        Self::with(Keeper::start(arguments))
    }

    pub fn with(keeper: Keeper) -> Self {
        let (listener, path) = keeper.listener("db");
        let daemon = Daemon::connect(&keeper.socket());
        let channel = daemon.keep("db", &[listener.as_fd(), memory().as_fd()]);
        channel.accept();
        let client = Client::connect(&path);
        let number = channel.client(false);
        Self { keeper, daemon, channel, client, number, path }
    }

    /// The daemon dies, and another one has the device.
    pub fn next_daemon(&mut self, has_client: bool) {
        self.daemon_dies();
        self.daemon = Daemon::connect(&self.keeper.socket());
        self.channel = self.daemon.take_over("db", has_client);
    }

    fn daemon_dies(&mut self) {
        // In place of the sockets, ends of nothing.
        let (nothing, _) = UnixStream::pair().unwrap();
        self.daemon.0 = nothing.try_clone().unwrap().into();
        self.channel.0 = nothing.into();
    }
}
