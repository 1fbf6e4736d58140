//! Access to memory that its owner may take away: every load, store and copy of guest memory, in one place.
//!
//! A page that its file does not reach any more (the client shrank it, its tmpfs is full), or that the hardware found
//! to be bad, raises SIGBUS when it is touched, which would end the daemon and with it every other tenant. Each access
//! here is one instruction, or a few, whose address is entered in a table next to the code (the section
//! `guest_fixups`); the handler of [`install`] looks the interrupted instruction up there and has it go on behind the
//! access, which then says [`Lost`]. So nothing is mapped in place of what is gone, nobody reads zeros that the guest
//! did not write, and the handler needs neither memory nor a lock. A page that is there costs one cleared register.
//!
//! System calls on such pages fail with `EFAULT` and raise nothing.
//!
//! The compiler sees none of these accesses, so it can neither repeat, split nor merge one: what was read once was read
//! once. Loads have acquire and stores release ordering, which x86-64 gives to each.

use std::arch::asm;
use std::io;

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("guest memory is accessed by x86-64 instructions with a SIGBUS handler for Linux; port this file first");

/// Why an access did not happen. A copy may have happened in part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    /// There is no page behind the address any more: the client took it away.
    Page,
    /// The hardware found the page to be bad. Others of the mapping are what they were.
    BadPage,
}

/// What the handler leaves in `rax`.
const LOST_PAGE: u64 = 1;
const LOST_BAD_PAGE: u64 = 2;

#[inline]
fn outcome(met: u64) -> Result<(), Lost> {
    if met == 0 { Ok(()) } else { Err(if met == LOST_BAD_PAGE { Lost::BadPage } else { Lost::Page }) }
}

/// An access between the labels 2 and 3, after which the code goes on at 3: as offsets from the entry's own place,
/// so that it needs no relocation at run time. `R`: the linker may not leave it out.
macro_rules! access {
    ($($instruction:literal),+ ; $($operands:tt)*) => {{
        let met: u64;
        asm!(
            "xor eax, eax",
            "2:",
            $($instruction,)+
            "3:",
            ".pushsection guest_fixups, \"aR\", @progbits",
            ".balign 4",
            ".long 2b - .",
            ".long 3b - .",
            ".popsection",
            out("rax") met,
            options(nostack),
            $($operands)*
        );
        outcome(met)
    }};
}

/// # Safety
/// As for a volatile read of `at`, but that its page may be lost.
#[inline]
pub(crate) unsafe fn load_u8(at: *const u8) -> Result<u8, Lost> {
    let value: u32;
    // SAFETY: the caller's; a lost page ends at label 3 with an unspecified value, which is not used.
    unsafe { access!("movzx {value:e}, byte ptr [{at}]"; at = in(reg) at, value = out(reg) value) }
        .map(|()| value as u8)
}

/// # Safety
/// As for a volatile read of `at`, but that its page may be lost.
#[inline]
pub(crate) unsafe fn load_u16(at: *const u16) -> Result<u16, Lost> {
    let value: u32;
    // SAFETY: as in `load_u8`.
    unsafe { access!("movzx {value:e}, word ptr [{at}]"; at = in(reg) at, value = out(reg) value) }
        .map(|()| value as u16)
}

/// # Safety
/// As for a volatile read of `at`, but that its page may be lost.
#[inline]
pub(crate) unsafe fn load_u32(at: *const u32) -> Result<u32, Lost> {
    let value: u32;
    // SAFETY: as in `load_u8`.
    unsafe { access!("mov {value:e}, dword ptr [{at}]"; at = in(reg) at, value = out(reg) value) }.map(|()| value)
}

/// # Safety
/// As for a volatile read of `at`, but that its page may be lost.
#[inline]
pub(crate) unsafe fn load_u64(at: *const u64) -> Result<u64, Lost> {
    let value: u64;
    // SAFETY: as in `load_u8`.
    unsafe { access!("mov {value}, qword ptr [{at}]"; at = in(reg) at, value = out(reg) value) }.map(|()| value)
}

/// # Safety
/// As for a volatile write of `at`, but that its page may be lost.
#[inline]
pub(crate) unsafe fn store_u8(at: *mut u8, value: u8) -> Result<(), Lost> {
    // SAFETY: the caller's; nothing is written to a lost page.
    unsafe { access!("mov byte ptr [{at}], {value}"; at = in(reg) at, value = in(reg_byte) value) }
}

/// # Safety
/// As for a volatile write of `at`, but that its page may be lost.
#[inline]
pub(crate) unsafe fn store_u16(at: *mut u16, value: u16) -> Result<(), Lost> {
    // SAFETY: as in `store_u8`.
    unsafe { access!("mov word ptr [{at}], {value:x}"; at = in(reg) at, value = in(reg) value) }
}

/// # Safety
/// As for a volatile write of `at`, but that its page may be lost.
#[inline]
pub(crate) unsafe fn store_u32(at: *mut u32, value: u32) -> Result<(), Lost> {
    // SAFETY: as in `store_u8`.
    unsafe { access!("mov dword ptr [{at}], {value:e}"; at = in(reg) at, value = in(reg) value) }
}

/// # Safety
/// As for a volatile write of `at`, but that its page may be lost.
#[inline]
pub(crate) unsafe fn store_u64(at: *mut u64, value: u64) -> Result<(), Lost> {
    // SAFETY: as in `store_u8`.
    unsafe { access!("mov qword ptr [{at}], {value}"; at = in(reg) at, value = in(reg) value) }
}

/// The 16 bytes at `at`, which needs no alignment.
///
/// # Safety
/// As for a read of them, but that their pages may be lost and others may write to them meanwhile.
#[inline]
pub(crate) unsafe fn load_16(at: *const u8) -> Result<[u8; 16], Lost> {
    // Into registers: what is looked at piece by piece right away would wait for its way through memory.
    let (low, high): (u64, u64);
    // SAFETY: as in `load_u8`; x86-64 loads need no alignment.
    unsafe {
        access!("mov {low}, qword ptr [{at}]", "mov {high}, qword ptr [{at} + 8]";
            at = in(reg) at, low = out(reg) low, high = out(reg) high)
    }
    .map(|()| (u128::from(low) | u128::from(high) << 64).to_ne_bytes())
}

/// The 64 bytes at `at`, which needs no alignment, into `out`.
///
/// # Safety
/// As for a read of them, but that their pages may be lost and others may write to them meanwhile.
#[inline]
pub(crate) unsafe fn load_64(at: *const u8, out: &mut [u8; 64]) -> Result<(), Lost> {
    // SAFETY: the caller's; `out` is ours and has 64 bytes.
    unsafe { move_64(at, out.as_mut_ptr()) }
}

/// `value` to the 64 bytes at `at`, which needs no alignment.
///
/// # Safety
/// As for a write of them, but that their pages may be lost and others may read them meanwhile.
#[inline]
pub(crate) unsafe fn store_64(at: *mut u8, value: &[u8; 64]) -> Result<(), Lost> {
    // SAFETY: the caller's; `value` is ours and has 64 bytes.
    unsafe { move_64(value.as_ptr(), at) }
}

/// Asks the cache for the line at `at`. A page that is lost, or not there, raises nothing.
#[inline]
pub(crate) fn prefetch(at: *const u8) {
    // SAFETY: a hint; it accesses nothing as far as the program can tell.
    unsafe { asm!("prefetcht0 byte ptr [{at}]", at = in(reg) at, options(nostack, preserves_flags)) }
}

/// As [`prefetch`], for a line that is to be written: no other core has it then.
#[inline]
pub(crate) fn prefetch_to_write(at: *const u8) {
    // SAFETY: a hint; it accesses nothing as far as the program can tell. Processors without it do nothing.
    unsafe { asm!("prefetchw byte ptr [{at}]", at = in(reg) at, options(nostack, preserves_flags)) }
}

/// Copies `len` bytes: where the two overlap, what is copied is a mix.
///
/// # Safety
/// As for a read and a write of them, but that their pages may be lost and others may use them meanwhile.
#[inline]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) -> Result<(), Lost> {
    // Two moves that overlap do any length between one and two of theirs. `rep movsb` takes longer to start than a
    // header or a descriptor to copy, and the next copy waits for its end: pages that are in no cache take 1.5 times as
    // long as by loads, which overtake it.
    // SAFETY: the caller's; the last `n` bytes are inside where `len` is at least `n`.
    unsafe {
        match len {
            0 => Ok(()),
            1..4 => (0..len).try_for_each(|at| move_1(from.add(at), to.add(at))),
            4..8 => move_4(from, to).and_then(|()| move_4(from.add(len - 4), to.add(len - 4))),
            8..16 => move_8(from, to).and_then(|()| move_8(from.add(len - 8), to.add(len - 8))),
            16..64 => {
                let last = len - 16;
                let all = (0..last).step_by(16).try_for_each(|at| move_16(from.add(at), to.add(at)));
                all.and_then(|()| move_16(from.add(last), to.add(last)))
            }
            64..256 => {
                let last = len - 64;
                let all = (0..last).step_by(64).try_for_each(|at| move_64(from.add(at), to.add(at)));
                all.and_then(|()| move_64(from.add(last), to.add(last)))
            }
            _ if is_x86_feature_detected!("avx") => {
                move_128s(from, to, len & !127).and_then(|()| move_128s(from.add(len - 128), to.add(len - 128), 128))
            }
            // The direction flag is clear (ABI). A lost page ends the copy where it is.
            _ => access!("rep movsb"; inout("rcx") len => _, inout("rsi") from => _, inout("rdi") to => _),
        }
    }
}

#[inline]
unsafe fn move_1(from: *const u8, to: *mut u8) -> Result<(), Lost> {
    // SAFETY: as in `copy`.
    unsafe {
        access!("movzx {it:e}, byte ptr [{from}]", "mov byte ptr [{to}], {it:l}";
            from = in(reg) from, to = in(reg) to, it = out(reg) _)
    }
}

#[inline]
unsafe fn move_4(from: *const u8, to: *mut u8) -> Result<(), Lost> {
    // SAFETY: as in `copy`.
    unsafe {
        access!("mov {it:e}, dword ptr [{from}]", "mov dword ptr [{to}], {it:e}";
            from = in(reg) from, to = in(reg) to, it = out(reg) _)
    }
}

#[inline]
unsafe fn move_8(from: *const u8, to: *mut u8) -> Result<(), Lost> {
    // SAFETY: as in `copy`.
    unsafe {
        access!("mov {it}, qword ptr [{from}]", "mov qword ptr [{to}], {it}";
            from = in(reg) from, to = in(reg) to, it = out(reg) _)
    }
}

#[inline]
unsafe fn move_16(from: *const u8, to: *mut u8) -> Result<(), Lost> {
    // SAFETY: as in `copy`.
    unsafe {
        access!("movups {it}, xmmword ptr [{from}]", "movups xmmword ptr [{to}], {it}";
            from = in(reg) from, to = in(reg) to, it = out(xmm_reg) _)
    }
}

#[inline]
unsafe fn move_64(from: *const u8, to: *mut u8) -> Result<(), Lost> {
    // SAFETY: as in `copy`.
    unsafe {
        access!(
            "movups {a}, xmmword ptr [{from}]", "movups {b}, xmmword ptr [{from} + 16]",
            "movups {c}, xmmword ptr [{from} + 32]", "movups {d}, xmmword ptr [{from} + 48]",
            "movups xmmword ptr [{to}], {a}", "movups xmmword ptr [{to} + 16], {b}",
            "movups xmmword ptr [{to} + 32], {c}", "movups xmmword ptr [{to} + 48], {d}";
            from = in(reg) from, to = in(reg) to,
            a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _
        )
    }
}

/// `len` bytes, a multiple of 128 above 0. Needs AVX.
#[target_feature(enable = "avx")]
unsafe fn move_128s(from: *const u8, to: *mut u8, len: usize) -> Result<(), Lost> {
    // SAFETY: as in `copy`. A lost page ends the copy where it is.
    let done = unsafe {
        access!(
            "5:",
            "vmovdqu {a}, ymmword ptr [{from}]", "vmovdqu {b}, ymmword ptr [{from} + 32]",
            "vmovdqu {c}, ymmword ptr [{from} + 64]", "vmovdqu {d}, ymmword ptr [{from} + 96]",
            "vmovdqu ymmword ptr [{to}], {a}", "vmovdqu ymmword ptr [{to} + 32], {b}",
            "vmovdqu ymmword ptr [{to} + 64], {c}", "vmovdqu ymmword ptr [{to} + 96], {d}",
            "sub {from}, -128", "sub {to}, -128", "add {len}, -128", "jnz 5b";
            from = inout(reg) from => _, to = inout(reg) to => _, len = inout(reg) len => _,
            a = out(ymm_reg) _, b = out(ymm_reg) _, c = out(ymm_reg) _, d = out(ymm_reg) _
        )
    };
    // SAFETY: it clears registers that are declared. Without it the SSE code of our callers would run slowly.
    unsafe { asm!("vzeroupper", options(nomem, nostack, preserves_flags), clobber_abi("sysv64")) };
    done
}

/// One entry of the table: each relative to its own address.
#[repr(C)]
struct Fixup {
    access: i32,
    goes_on: i32,
}

unsafe extern "C" {
    // The linker defines both for a section whose name is an identifier.
    static __start_guest_fixups: Fixup;
    static __stop_guest_fixups: Fixup;
}

/// Where the access that `at` is an instruction of goes on; `None`: it is not one of ours.
fn goes_on(at: u64) -> Option<u64> {
    let (mut entry, end) = (&raw const __start_guest_fixups, &raw const __stop_guest_fixups);
    while entry < end {
        // SAFETY: between the bounds there are entries alone, as `access!` wrote them; fields are aligned.
        let (access, behind) = unsafe {
            let (access, goes_on) = (&raw const (*entry).access, &raw const (*entry).goes_on);
            (access as i64 + i64::from(*access), goes_on as i64 + i64::from(*goes_on))
        };
        if (access as u64..behind as u64).contains(&at) {
            return Some(behind as u64);
        }
        entry = entry.wrapping_add(1);
    }
    None
}

/// Installs the handler for the process. Call it once, before mapping anything of a peer's.
///
/// A SIGBUS that is not about guest memory ends the process as it would without us.
///
/// # Errors
/// The kernel refused the handler.
pub fn install() -> io::Result<()> {
    // SAFETY: a zeroed sigaction is valid: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_sigbus as extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) as usize;
    // On the alternate stack, which the standard library gives to every thread, in case that the
    // thread's own is the page that fails.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler has the signature that SA_SIGINFO asks for and only does what is allowed in one: it reads a
    // constant table, changes the interrupted context, and calls signal and raise.
    if unsafe { libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo and, with SA_SIGINFO, the context of the interrupted thread, which is
    // put back from there when this returns.
    let (code, registers) = unsafe { ((*info).si_code, &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs) };
    // Positive: about memory, and not sent by kill().
    let behind = if code > 0 { goes_on(registers[libc::REG_RIP as usize] as u64) } else { None };
    if let Some(behind) = behind {
        registers[libc::REG_RIP as usize] = behind as i64;
        registers[libc::REG_RAX as usize] = met(code) as i64;
        return;
    }
    // SAFETY: both calls are allowed in handlers. The raised signal is delivered when we return.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

/// What a SIGBUS with this `si_code` tells of the page.
fn met(code: libc::c_int) -> u64 {
    match code {
        libc::BUS_MCEERR_AR | libc::BUS_MCEERR_AO => LOST_BAD_PAGE,
        _ => LOST_PAGE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_do_what_they_say() {
        let mut bytes: [u8; 64] = std::array::from_fn(|at| at as u8);
        let at = bytes.as_mut_ptr();
        // SAFETY: inside of an array of our own.
        unsafe {
            assert_eq!(load_u8(at.add(3)), Ok(3));
            assert_eq!(load_u16(at.add(2).cast()), Ok(0x0302));
            assert_eq!(load_u32(at.add(4).cast()), Ok(0x0706_0504));
            assert_eq!(load_u64(at.add(8).cast()), Ok(0x0f0e_0d0c_0b0a_0908));
            assert_eq!(load_16(at.add(5)), Ok(std::array::from_fn(|at| at as u8 + 5)));
            let mut copy_of = [0; 64];
            assert_eq!(load_64(at, &mut copy_of), Ok(()));
            assert_eq!(copy_of, std::array::from_fn(|at| at as u8));
            assert_eq!(store_u8(at, 0xff), Ok(()));
            assert_eq!(store_u16(at.add(2).cast(), 0xfefe), Ok(()));
            assert_eq!(store_u32(at.add(4).cast(), 0xfdfd_fdfd), Ok(()));
            assert_eq!(store_u64(at.add(8).cast(), 0xfcfc_fcfc_fcfc_fcfc), Ok(()));
            assert_eq!(copy(at, at.add(32), 16), Ok(()));
        }
        let written = [0xff, 1, 0xfe, 0xfe, 0xfd, 0xfd, 0xfd, 0xfd, 0xfc, 0xfc, 0xfc, 0xfc, 0xfc, 0xfc, 0xfc, 0xfc];
        assert_eq!(bytes[..16], written);
        assert_eq!(bytes[16..32], std::array::from_fn::<u8, 16, _>(|at| at as u8 + 16));
        assert_eq!(bytes[32..48], written);
    }

    #[test]
    fn copies_of_any_length_are_whole_and_no_longer() {
        let from: [u8; 600] = std::array::from_fn(|at| (at % 251) as u8 + 1);
        for len in 0..=520 {
            let mut to = [0; 600];
            // SAFETY: inside of arrays of our own.
            assert_eq!(unsafe { copy(from[7..].as_ptr(), to[3..].as_mut_ptr(), len) }, Ok(()));
            assert_eq!(to[3..3 + len], from[7..7 + len], "{len}");
            assert!(to[..3].iter().chain(&to[3 + len..]).all(|byte| *byte == 0), "{len}");
        }
    }

    #[test]
    fn a_bad_page_is_told_from_one_that_is_gone() {
        assert_eq!(outcome(met(libc::BUS_ADRERR)), Err(Lost::Page));
        assert_eq!(outcome(met(libc::BUS_MCEERR_AR)), Err(Lost::BadPage));
        assert_eq!(outcome(0), Ok(()));
    }

    #[test]
    fn only_accesses_to_guest_memory_are_known() {
        assert_eq!(goes_on(install as fn() -> io::Result<()> as usize as u64), None);
        assert_eq!(goes_on(0), None);
    }
}
