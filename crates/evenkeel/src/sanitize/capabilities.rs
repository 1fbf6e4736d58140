//! How an NVMe drive can erase itself: what its Identify data offer, and the commands for it.

use std::fmt;
use std::time::Duration;

use nvme_driver::passthrough::AdminCommand;
use nvme_spec::identify::{IdentifyController, fna, oacs, sanicap};
use nvme_spec::log::{SanitizeLog, sstat};
use nvme_spec::namespace::IdentifyNamespace;
use nvme_spec::opcode::{admin, format, sanitize};

/// A Sanitize command only begins; a Format returns when it has ended.
const SANITIZE_LIMIT: Duration = Duration::from_secs(60);
const FORMAT_LIMIT: Duration = Duration::from_secs(24 * 3600);

/// How a drive is erased, in the order in which they are preferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Action {
    /// Sanitize: the key of all data is thrown away
    CryptoErase,
    /// Sanitize: all blocks are erased
    BlockErase,
    /// Sanitize: everything is overwritten with zeros
    Overwrite,
    /// Format NVM that throws the key away
    FormatCryptoErase,
    /// Format NVM that erases user data
    FormatUserData,
}

impl Action {
    /// All of them, in that order.
    pub const ALL: [Self; 5] =
        [Self::CryptoErase, Self::BlockErase, Self::Overwrite, Self::FormatCryptoErase, Self::FormatUserData];

    /// Whether it goes on by itself once it has begun, and its Sanitize Status log says how far it is.
    pub fn is_sanitize(self) -> bool {
        !matches!(self, Self::FormatCryptoErase | Self::FormatUserData)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CryptoErase => "Sanitize by crypto erase",
            Self::BlockErase => "Sanitize by block erase",
            Self::Overwrite => "Sanitize by overwriting",
            Self::FormatCryptoErase => "Format with cryptographic erase",
            Self::FormatUserData => "Format with user data erase",
        })
    }
}

/// What a drive says of itself.
pub struct Capabilities {
    /// Its controller.
    pub controller: IdentifyController,
    /// The namespace that the block device is.
    pub nsid: u32,
    /// Its format.
    pub namespace: IdentifyNamespace,
    /// All that there are.
    pub namespaces: Vec<u32>,
}

impl Capabilities {
    /// Whether the Sanitize Status log is there.
    pub fn sanitizes(&self) -> bool {
        let all = sanicap::CRYPTO_ERASE | sanicap::BLOCK_ERASE | sanicap::OVERWRITE;
        self.controller.sanicap & all != 0
    }

    /// # Errors
    /// The drive can't, or it would erase more than the namespace; in words.
    pub fn check(&self, action: Action) -> Result<(), String> {
        let IdentifyController { sanicap, oacs, fna, .. } = self.controller;
        let is_there = match action {
            Action::CryptoErase => sanicap & sanicap::CRYPTO_ERASE != 0,
            Action::BlockErase => sanicap & sanicap::BLOCK_ERASE != 0,
            Action::Overwrite => sanicap & sanicap::OVERWRITE != 0,
            Action::FormatCryptoErase => oacs & oacs::FORMAT != 0 && fna & fna::CRYPTO_ERASE != 0,
            Action::FormatUserData => oacs & oacs::FORMAT != 0,
        };
        if !is_there {
            return Err(format!("it has no {action}"));
        }
        let others: Vec<String> =
            self.namespaces.iter().filter(|nsid| **nsid != self.nsid).map(u32::to_string).collect();
        if self.is_of_all(action) && !others.is_empty() {
            return Err(format!("{action} would erase its namespaces {} too", others.join(", ")));
        }
        Ok(())
    }

    /// Whether it erases all namespaces: a Sanitize is of the whole NVM subsystem.
    pub fn is_of_all(&self, action: Action) -> bool {
        action.is_sanitize() || self.controller.fna & (fna::FORMAT_ALL | fna::ERASE_ALL) != 0
    }

    /// The best that the drive can do.
    ///
    /// # Errors
    /// Nothing, and why not, in words.
    pub fn choose(&self) -> Result<Action, String> {
        if let Some(best) = Action::ALL.into_iter().find(|action| self.check(*action).is_ok()) {
            return Ok(best);
        }
        let whys: Vec<String> = Action::ALL.into_iter().filter_map(|action| self.check(action).err()).collect();
        Err(whys.join("; "))
    }

    /// What does it. The LBA format stays.
    pub fn command(&self, action: Action) -> AdminCommand {
        let sanitize =
            |cdw10| AdminCommand { opcode: admin::SANITIZE, nsid: 0, cdw10, cdw11: 0, timeout: SANITIZE_LIMIT };
        match action {
            Action::CryptoErase => sanitize(sanitize::CRYPTO_ERASE),
            Action::BlockErase => sanitize(sanitize::BLOCK_ERASE),
            Action::Overwrite => sanitize(sanitize::OVERWRITE | 1 << sanitize::OWPASS_SHIFT),
            Action::FormatCryptoErase => self.format(format::SES_CRYPTO),
            Action::FormatUserData => self.format(format::SES_USER_DATA),
        }
    }

    fn format(&self, erase: u32) -> AdminCommand {
        let (flbas, dps) = (u32::from(self.namespace.flbas), u32::from(self.namespace.dps));
        let cdw10 = flbas & (format::LBAF | format::MSET)
            | flbas << 7 & format::LBAFU
            | dps << 5 & format::PI
            | dps << 5 & format::PIL
            | erase << format::SES_SHIFT;
        AdminCommand { opcode: admin::FORMAT_NVM, nsid: self.nsid, cdw10, cdw11: 0, timeout: FORMAT_LIMIT }
    }
}

/// How far a drive is, as its Sanitize Status log says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It sanitizes nothing, and never did or was not told what became of it.
    Idle,
    /// It goes on; so much is done, in 65536ths.
    Going(u16),
    /// The most recent one ended as it should.
    Completed,
    /// The most recent one failed.
    Failed,
}

impl Status {
    /// As the log says.
    pub fn of(log: &SanitizeLog) -> Self {
        match log.sstat & sstat::STATUS {
            sstat::COMPLETED | sstat::COMPLETED_DEALLOCATED => Self::Completed,
            sstat::IN_PROGRESS => Self::Going(log.sprog),
            sstat::FAILED => Self::Failed,
            _ => Self::Idle,
        }
    }
}

/// The namespaces of an Identify list (Base 5.17.2.2), which ends at the first 0.
pub fn listed(list: &[u8]) -> Vec<u32> {
    let ids = list.as_chunks::<4>().0.iter().map(|id| u32::from_le_bytes(*id));
    ids.take_while(|nsid| *nsid != 0).collect()
}

#[cfg(test)]
mod tests {
    use bytemuck::{Zeroable, bytes_of, pod_read_unaligned};

    use super::*;

    /// A controller of these bytes (Base 5.17.2.1), with namespace 1 as one of `namespaces`.
    fn drive(bytes: &[(usize, u8)], namespaces: &[u32]) -> Capabilities {
        let mut controller = [0; 4096];
        bytes.iter().for_each(|(at, byte)| controller[*at] = *byte);
        Capabilities {
            controller: pod_read_unaligned(&controller),
            nsid: 1,
            namespace: IdentifyNamespace::zeroed(),
            namespaces: namespaces.to_vec(),
        }
    }

    /// Where SANICAP, OACS and FNA are.
    const SANICAP: usize = 328;
    const OACS: usize = 256;
    const FNA: usize = 524;

    #[test]
    fn the_best_that_a_drive_can_do_is_chosen() {
        for (bytes, chosen) in [
            (&[(SANICAP, 0b111), (OACS, 2), (FNA, 4)][..], Action::CryptoErase),
            (&[(SANICAP, 0b110), (OACS, 2), (FNA, 4)], Action::BlockErase),
            (&[(SANICAP, 0b100), (OACS, 2), (FNA, 4)], Action::Overwrite),
            (&[(OACS, 2), (FNA, 4)], Action::FormatCryptoErase),
            (&[(OACS, 2)], Action::FormatUserData),
        ] {
            assert_eq!(drive(bytes, &[1]).choose(), Ok(chosen), "{bytes:?}");
        }
        let told = drive(&[(FNA, 4)], &[1]).choose().unwrap_err();
        assert!(told.contains("no Sanitize by block erase") && told.contains("no Format with user"), "{told}");
    }

    #[test]
    fn what_would_erase_other_namespaces_is_refused() {
        let all = [(SANICAP, 1), (OACS, 2)];
        assert_eq!(drive(&all, &[1, 3]).choose(), Ok(Action::FormatUserData), "it is of one namespace");
        let told = drive(&all, &[1, 3]).check(Action::CryptoErase).unwrap_err();
        assert_eq!(told, "Sanitize by crypto erase would erase its namespaces 3 too");
        for fna in [0b001, 0b010] {
            assert!(drive(&[(OACS, 2), (FNA, fna)], &[1, 3]).choose().is_err());
            assert!(drive(&[(OACS, 2), (FNA, fna)], &[1]).choose().is_ok());
        }
    }

    #[test]
    fn commands_are_as_the_specification_has_them() {
        let mut drive = drive(&[], &[1]);
        let command = |drive: &Capabilities, action| {
            let AdminCommand { opcode, nsid, cdw10, cdw11, .. } = drive.command(action);
            (opcode, nsid, cdw10, cdw11)
        };
        assert_eq!(command(&drive, Action::BlockErase), (0x84, 0, 2, 0));
        assert_eq!(command(&drive, Action::Overwrite), (0x84, 0, 0x13, 0));
        assert_eq!(command(&drive, Action::CryptoErase), (0x84, 0, 4, 0));
        assert_eq!(command(&drive, Action::FormatUserData), (0x80, 1, 0x200, 0));
        // LBA format 2 x 16 + 5, metadata in extended LBAs, protection type 3 in its first bytes.
        drive.namespace.flbas = 0b0101_0101;
        drive.namespace.dps = 0b1011;
        assert_eq!(command(&drive, Action::FormatCryptoErase), (0x80, 1, 0x2000 | 0x400 | 0x100 | 0x60 | 0x15, 0));
    }

    #[test]
    fn the_log_page_says_how_far_it_is() {
        let log = |bytes: [u8; 4]| {
            let mut page = [0xff; 512];
            page[..4].copy_from_slice(&bytes);
            Status::of(&pod_read_unaligned(&page))
        };
        assert_eq!(log([0xff, 0xff, 0, 0]), Status::Idle);
        // Half, after three passes; GDE in bit 8.
        assert_eq!(log([0x00, 0x80, 0b11010, 1]), Status::Going(0x8000));
        assert_eq!(log([0xff, 0xff, 1, 0]), Status::Completed);
        assert_eq!(log([0xff, 0xff, 4, 0]), Status::Completed);
        assert_eq!(log([0xff, 0xff, 3, 0]), Status::Failed);
    }

    #[test]
    fn a_list_of_namespaces_ends_at_a_zero() {
        assert_eq!(listed(bytes_of(&[1u32, 7, 0, 9])), [1, 7]);
        assert_eq!(listed(bytes_of(&[5u32; 2])), [5, 5]);
    }
}
