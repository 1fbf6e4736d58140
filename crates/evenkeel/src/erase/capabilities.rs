//! How an NVMe drive can erase itself: what its Identify data offer, and the commands for it.

use std::fmt;

use nvme_spec::Sqe;
use nvme_spec::identify::{IdentifyController, fna, oacs, sanicap};
use nvme_spec::log::{SanitizeLog, sstat};
use nvme_spec::namespace::IdentifyNamespace;
use nvme_spec::opcode::{admin, format, sanitize};

/// How a drive is erased, in the order in which they are preferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// The namespace that is to be erased.
    pub nsid: u32,
    /// Its format.
    pub namespace: IdentifyNamespace,
}

impl Capabilities {
    /// Whether the drive can be erased so.
    pub fn has(&self, action: Action) -> bool {
        let IdentifyController { sanicap, oacs, fna, .. } = self.controller;
        match action {
            Action::CryptoErase => sanicap & sanicap::CRYPTO_ERASE != 0,
            Action::BlockErase => sanicap & sanicap::BLOCK_ERASE != 0,
            Action::Overwrite => sanicap & sanicap::OVERWRITE != 0,
            Action::FormatCryptoErase => oacs & oacs::FORMAT != 0 && fna & fna::CRYPTO_ERASE != 0,
            Action::FormatUserData => oacs & oacs::FORMAT != 0,
        }
    }

    /// Whether it erases all namespaces: a Sanitize is of the whole NVM subsystem.
    pub fn is_of_all(&self, action: Action) -> bool {
        action.is_sanitize() || self.controller.fna & (fna::FORMAT_ALL | fna::ERASE_ALL) != 0
    }

    /// What does it. The LBA format stays.
    pub fn command(&self, action: Action) -> Sqe {
        let sanitize = |cdw10| Sqe { opc: admin::SANITIZE, cdw10, ..Sqe::default() };
        match action {
            Action::CryptoErase => sanitize(sanitize::CRYPTO_ERASE),
            Action::BlockErase => sanitize(sanitize::BLOCK_ERASE),
            Action::Overwrite => sanitize(sanitize::OVERWRITE | 1 << sanitize::OWPASS_SHIFT),
            Action::FormatCryptoErase => self.format(format::SES_CRYPTO),
            Action::FormatUserData => self.format(format::SES_USER_DATA),
        }
    }

    fn format(&self, erase: u32) -> Sqe {
        let (flbas, dps) = (u32::from(self.namespace.flbas), u32::from(self.namespace.dps));
        let cdw10 = flbas & (format::LBAF | format::MSET)
            | flbas << 7 & format::LBAFU
            | dps << 5 & format::PI
            | dps << 5 & format::PIL
            | erase << format::SES_SHIFT;
        Sqe { opc: admin::FORMAT_NVM, nsid: self.nsid, cdw10, ..Sqe::default() }
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

#[cfg(test)]
mod tests {
    use bytemuck::{Zeroable, pod_read_unaligned};

    use super::*;

    #[test]
    fn commands_are_as_the_specification_has_them() {
        let controller = IdentifyController::zeroed();
        let mut drive = Capabilities { controller, nsid: 1, namespace: IdentifyNamespace::zeroed() };
        let command = |drive: &Capabilities, action| {
            let Sqe { opc, nsid, cdw10, cdw11, .. } = drive.command(action);
            (opc, nsid, cdw10, cdw11)
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
}
