//! The tables as filters that the kernel applies, and what ends a process that breaks one.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::sync::OnceLock;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};

use crate::calls::ThreadKind;

/// See [`before_the_end`].
static LAST_ACT: OnceLock<fn()> = OnceLock::new();

static FILTERS: OnceLock<BTreeMap<ThreadKind, BpfProgram>> = OnceLock::new();

thread_local! {
    /// For the last words. Needs no initialization, which a signal handler must not do.
    static NAME: Cell<(&'static str, &'static str)> = const { Cell::new(("evenkeel", "that has no filter yet")) };
}

/// From now on a thread that [`enter`]s is confined, and a call that its filter does not allow ends the process.
///
/// # Errors
/// This machine has no filters.
pub fn arm() -> io::Result<()> {
    let filters: Result<BTreeMap<_, _>, _> =
        ThreadKind::ALL.map(|kind| Ok((kind, compile(kind)?))).into_iter().collect();
    let filters = filters.map_err(|error: seccompiler::BackendError| io::Error::other(error))?;
    say_what_was_forbidden()?;
    settle_the_allocator();
    // A second time nothing changes.
    let _ = FILTERS.set(filters);
    Ok(())
}

/// Has a forbidden call run `act` in its thread before it ends the process. It must be what a signal handler may do.
/// The first such act counts.
pub fn before_the_end(act: fn()) {
    let _ = LAST_ACT.set(act);
}

/// As [`arm`], in a process that has one thread so far: the C library installs a handler with the second one, which the
/// filters forbid.
///
/// # Errors
/// As of [`arm`], or there is no thread left.
#[allow(clippy::disallowed_methods, reason = "a thread that does nothing")]
pub fn arm_alone() -> io::Result<()> {
    let _ = std::thread::Builder::new().spawn(|| {})?.join();
    arm()
}

/// A kind of thread's filter, if anybody [`arm`]ed.
pub(crate) fn filter_of(kind: ThreadKind) -> Option<&'static BpfProgram> {
    FILTERS.get().and_then(|filters| filters.get(&kind))
}

/// Whether threads are confined.
pub fn is_armed() -> bool {
    FILTERS.get().is_some()
}

/// Confines this thread, and those that it starts, for good; or does nothing where nobody [`arm`]ed.
///
/// # Panics
/// The kernel refused: a thread that can't be confined must not run.
pub fn enter(kind: ThreadKind) {
    let Some(filter) = filter_of(kind) else { return };
    NAME.set((kind.program(), kind.name()));
    if let Err(error) = apply_filter(filter) {
        panic!("can't confine the {} thread: {error}; --unconfined goes without", kind.name());
    }
}

/// glibc's allocator reads files when no thread could by then. How many processors there are, when the ninth thread
/// asks it for memory: told the number that it would reckon, it never does. And what the kernel overcommits, when a
/// thread first gives back a large piece: one does so here, and it remembers. What is large would otherwise depend on
/// what was freed before: a long configuration made it more than this thread has.
fn settle_the_allocator() {
    #[cfg(target_env = "gnu")]
    {
        let processors =
            std::thread::available_parallelism().map_or(1, |n| libc::c_int::try_from(n.get()).unwrap_or(1));
        // SAFETY: sets a number; it has no other effect, and none if it is refused.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, processors.saturating_mul(8)) };
        // SAFETY: as above.
        unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES) };
        // Not this thread: the first one's memory is given back otherwise.
        #[allow(clippy::disallowed_methods, reason = "it has ended before any of the daemon's own starts")]
        let _ = std::thread::spawn(give_back_memory).join();
    }
}

/// What the allocator keeps of a thread's memory that is not used.
const KEPT_BYTES: libc::c_int = 1 << 20;

fn give_back_memory() {
    allocate_and_free(2 * KEPT_BYTES as usize);
}

/// In pieces that the allocator doesn't map one by one.
fn allocate_and_free(bytes: usize) {
    const PIECE_BYTES: usize = 100_000;
    let pieces: Vec<Vec<u8>> = std::iter::repeat_with(|| vec![1; PIECE_BYTES]).take(bytes / PIECE_BYTES).collect();
    drop(std::hint::black_box(pieces));
}

fn compile(kind: ThreadKind) -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for (call, conditions) in kind.tables().iter().copied().flatten() {
        let one = |(argument, how, value): &(u8, SeccompCmpOp, u64)| {
            SeccompCondition::new(*argument, SeccompCmpArgLen::Dword, how.clone(), *value)
        };
        let conditions: Vec<SeccompCondition> = conditions.iter().map(one).collect::<Result<_, _>>()?;
        let alternatives = rules.entry(*call).or_default();
        if !conditions.is_empty() {
            alternatives.push(SeccompRule::new(conditions)?);
        }
    }
    // No condition at all is what the kernel is told to allow a call whatever its arguments are.
    for (call, _) in kind.tables().iter().copied().flatten().filter(|(_, conditions)| conditions.is_empty()) {
        rules.insert(*call, Vec::new());
    }
    let arch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, SeccompAction::Trap, SeccompAction::Allow, arch)?.try_into()
}

/// Has a forbidden call end the process by SIGABRT with a line that names it, instead of silently.
fn say_what_was_forbidden() -> io::Result<()> {
    // SAFETY: an all-zero sigaction is a valid one: no flags, nothing masked.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler keeps to what a signal handler may do, and never returns.
    let done = unsafe { libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Where `si_syscall` lies in the information of SIGSYS (sigaction(2)): behind three numbers, padded, and an address.
const SI_SYSCALL: usize = 16 + size_of::<usize>();

/// The signal of a fault that the thread had. The handlers of the standard library and of guest memory restore the
/// system's action for such a signal first, and that is the call that the filter forbids.
fn fault(call: libc::c_int, context: &libc::ucontext_t) -> Option<&'static [u8]> {
    let signal = match call as libc::c_long {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_rt_sigaction => context.uc_mcontext.gregs[libc::REG_RDI as usize] as libc::c_int,
        #[cfg(target_arch = "aarch64")]
        libc::SYS_rt_sigaction => context.uc_mcontext.regs[0] as libc::c_int,
        _ => return None,
    };
    match signal {
        libc::SIGSEGV => Some(b"SIGSEGV"),
        libc::SIGBUS => Some(b"SIGBUS"),
        _ => None,
    }
}

extern "C" fn handler(_signal: libc::c_int, info: *const libc::siginfo_t, context: *const libc::ucontext_t) {
    if let Some(act) = LAST_ACT.get() {
        act();
    }
    // SAFETY: the kernel gives the information of a SIGSYS, which has 128 bytes and a number there.
    let call = unsafe { info.cast::<u8>().add(SI_SYSCALL).cast::<libc::c_int>().read_unaligned() };
    // SAFETY: the kernel gives the context of the interrupted thread.
    let fault = fault(call, unsafe { &*context });
    let mut digits = [0; 10];
    let call = decimal(call.unsigned_abs(), &mut digits);
    let (program, name) = NAME.try_with(Cell::get).unwrap_or(("evenkeel", "that ends"));
    let [did, what, then]: [&[u8]; 3] = match fault {
        Some(signal) => [b" got the signal ", signal, b", as after a bad access to memory"],
        None => [b" made the system call ", call, b", which its filter forbids"],
    };
    let end = b"; the program ends here, please report it\n";
    let words = [program.as_bytes(), b": the thread ", name.as_bytes(), did, what, then, end];
    let mut line = [0; 160];
    let mut len = 0;
    for byte in words.into_iter().flatten().take(line.len()) {
        line[len] = *byte;
        len += 1;
    }
    // Only if it does not wait: standard error may be a pipe that nobody reads.
    let mut writable = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one pollfd, a local; the line's bytes, a local; `abort` is what a signal handler may call.
    unsafe {
        if libc::poll(&raw mut writable, 1, 200) == 1 {
            libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), len);
        }
        libc::abort()
    }
}

/// Formats without what a signal handler must not use.
fn decimal(mut number: u32, digits: &mut [u8; 10]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}

#[cfg(test)]
mod tests;
