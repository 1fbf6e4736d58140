//! Identify (NVMe Base 2.0, 5.17; NVM Command Set 1.0, 4.1.5).

use bytemuck::{Zeroable, bytes_of};
use nvme_spec::feature::async_event;
use nvme_spec::identify::{
    IDENTIFY_BYTES, IdentifyController, IdentifyControllerNvm, cns, csi, fna, lpa, oacs, oncs, sgls, vwc,
};
use nvme_spec::namespace::{IdentifyNamespace, IdentifyNamespaceIndependent, LbaFormat, nidt};
use nvme_spec::opcode::dsm;
use nvme_spec::vendor::SIGNATURE;
use nvme_spec::{Sqe, Status, regs};

use super::events::MAX_HELD;
use super::features::WARNING_TEMPERATURE_K;
use super::logs::ERROR_ENTRIES;
use crate::Controller;
use crate::config::ControllerConfig;
use crate::msix::Interrupts;
use crate::namespace::NSID;
use crate::pci;
use crate::turns::RECOMMENDED_BURST;

/// An NGUID, a UUID and a command set, each behind four bytes.
const DESCRIPTORS_BYTES: usize = 3 * 4 + 16 + 16 + 1;

/// Critical temperature, in kelvin (85 °C). Never reached: there is nothing to get warm.
const CRITICAL_TEMPERATURE_K: u16 = 358;

impl<I: Interrupts> Controller<I> {
    /// What the command asks for, into zeros.
    pub(super) fn identify(&self, sqe: &Sqe, answer: &mut [u8; IDENTIFY_BYTES]) -> Result<(), Status> {
        let (cns, csi) = (sqe.cdw10 as u8, (sqe.cdw11 >> 24) as u8);
        let by_command_set = matches!(cns, cns::IOCS_NAMESPACE | cns::IOCS_CONTROLLER | cns::IOCS_ACTIVE_NAMESPACES);
        if by_command_set && csi != csi::NVM {
            return Err(Status::IOCS_INVALID);
        }
        let mut put = |data: &[u8]| answer[..data.len()].copy_from_slice(data);
        match cns {
            cns::NAMESPACE => put(bytes_of(&self.identify_namespace(sqe)?)),
            cns::CONTROLLER => put(bytes_of(&self.identify_controller())),
            cns::ACTIVE_NAMESPACES | cns::IOCS_ACTIVE_NAMESPACES => put(&active_namespaces(sqe)?),
            cns::NAMESPACE_DESCRIPTORS => put(&self.namespace_descriptors(sqe)?),
            // No protection information: all of it is zero.
            cns::IOCS_NAMESPACE => check_nsid(sqe)?,
            cns::IOCS_CONTROLLER => put(bytes_of(&self.identify_controller_nvm())),
            cns::INDEPENDENT_NAMESPACE => {
                check_nsid(sqe)?;
                put(bytes_of(&IdentifyNamespaceIndependent {
                    nstat: 1,
                    fpi: self.format_progress(),
                    ..Zeroable::zeroed()
                }));
            }
            // One combination, of the NVM command set alone.
            cns::IO_COMMAND_SETS => put(&[1 << csi::NVM]),
            _ => return Err(Status::INVALID_FIELD),
        }
        Ok(())
    }

    fn identify_controller(&self) -> IdentifyController {
        let config = &self.config;
        let optional =
            [(config.namespace.discard, oncs::DATASET_MANAGEMENT), (config.namespace.write_zeroes, oncs::WRITE_ZEROES)];
        let optional = optional.iter().filter(|(has, _)| *has).fold(0, |bits, (_, bit)| bits | bit);
        let cache = if config.namespace.volatile_write_cache { vwc::PRESENT } else { 0 };
        let mut data = IdentifyController {
            vid: pci::VENDOR_ID,
            ssvid: pci::VENDOR_ID,
            sn: padded(&config.serial),
            mn: padded(&config.model),
            fr: padded(&config.firmware),
            rab: RECOMMENDED_BURST,
            mdts: config.mdts(),
            ver: regs::VERSION_2_0,
            oaes: async_event::NAMESPACE_ATTRIBUTE,
            cntrltype: 1,
            oacs: oacs::FORMAT | oacs::DOORBELL_BUFFER,
            acl: 3,
            aerl: MAX_HELD as u8 - 1,
            // One firmware slot, read only.
            frmw: 1 << 1 | 1,
            lpa: lpa::COMMANDS_EFFECTS | lpa::EXTENDED_DATA,
            elpe: ERROR_ENTRIES as u8 - 1,
            wctemp: WARNING_TEMPERATURE_K,
            cctemp: CRITICAL_TEMPERATURE_K,
            tnvmcap: [self.namespace.config.size_bytes, 0],
            sqes: 6 << 4 | 6,
            cqes: 4 << 4 | 4,
            nn: 1,
            oncs: oncs::COMPARE | oncs::SAVE_SELECT | oncs::VERIFY | optional,
            fna: fna::FORMAT_ALL | fna::ERASE_ALL,
            vwc: cache | vwc::FLUSH_ALL,
            sgls: sgls::SUPPORTED_DWORD,
            ..Zeroable::zeroed()
        };
        data.subnqn[..config.subnqn.len()].copy_from_slice(config.subnqn.as_bytes());
        data.psd[0].mp = 2500;
        data.vendor[..SIGNATURE.len()].copy_from_slice(SIGNATURE);
        data
    }

    fn identify_controller_nvm(&self) -> IdentifyControllerNvm {
        IdentifyControllerNvm {
            vsl: self.config.mdts(),
            dmrl: (dsm::MAX_RANGES - 1) as u8,
            dmrsl: u32::MAX,
            ..Zeroable::zeroed()
        }
    }

    fn identify_namespace(&self, sqe: &Sqe) -> Result<IdentifyNamespace, Status> {
        check_nsid(sqe)?;
        let config = &self.namespace.config;
        let blocks = self.namespace.blocks();
        let mut data = IdentifyNamespace {
            nsze: blocks,
            ncap: blocks,
            nuse: blocks,
            nlbaf: config.lba_sizes.len() as u8 - 1,
            flbas: self.namespace.format_index(),
            fpi: self.format_progress(),
            nvmcap: [config.size_bytes, 0],
            nguid: identity(&self.config),
            ..Zeroable::zeroed()
        };
        for (format, size) in data.lbaf.iter_mut().zip(&config.lba_sizes) {
            // 4096 is the better of the two for any drive.
            let rp = u8::from(*size < 4096 && config.lba_sizes.len() > 1);
            *format = LbaFormat { ms: 0, lbads: size.trailing_zeros() as u8, rp };
        }
        Ok(data)
    }

    /// Namespace identification descriptors: NGUID, UUID and command set.
    fn namespace_descriptors(&self, sqe: &Sqe) -> Result<[u8; DESCRIPTORS_BYTES], Status> {
        check_nsid(sqe)?;
        let guid = identity(&self.config);
        let mut uuid = guid;
        // RFC 9562: version 8 (made as the maker likes), variant 10b.
        uuid[6] = uuid[6] & 0x0f | 0x80;
        uuid[8] = uuid[8] & 0x3f | 0x80;
        let mut data = [0; DESCRIPTORS_BYTES];
        let mut rest = &mut data[..];
        for (kind, id) in [(nidt::NGUID, &guid[..]), (nidt::UUID, &uuid[..]), (nidt::CSI, &[csi::NVM][..])] {
            let (descriptor, later) = rest.split_at_mut(4 + id.len());
            descriptor[..2].copy_from_slice(&[kind, id.len() as u8]);
            descriptor[4..].copy_from_slice(id);
            rest = later;
        }
        Ok(data)
    }
}

/// NSIDs above the one asked with; ours is 1.
fn active_namespaces(sqe: &Sqe) -> Result<[u8; 4], Status> {
    if sqe.nsid >= 0xffff_fffe {
        return Err(Status::INVALID_NAMESPACE);
    }
    Ok(if sqe.nsid < NSID { NSID } else { 0 }.to_le_bytes())
}

/// Without namespace management there is no broadcast form either.
fn check_nsid(sqe: &Sqe) -> Result<(), Status> {
    if sqe.nsid == NSID { Ok(()) } else { Err(Status::INVALID_NAMESPACE) }
}

/// Text in a fixed field, padded with spaces. The configuration was checked to fit.
fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    for (byte, from) in field.iter_mut().zip(text.bytes()) {
        *byte = from;
    }
    field
}

/// A globally unique identifier that stays the same as long as the subsystem's name and the serial
/// number do: their FNV-1a hash of 128 bits.
fn identity(config: &ControllerConfig) -> [u8; 16] {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let bytes = config.subnqn.bytes().chain([0]).chain(config.serial.bytes());
    bytes.fold(OFFSET, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME)).to_be_bytes()
}
