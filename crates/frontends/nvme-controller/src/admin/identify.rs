//! Identify (NVMe Base 2.0, 5.17; NVM Command Set 1.0, 4.1.5).

use bytemuck::{Zeroable, bytes_of, cast_slice};
use nvme_spec::feature::async_event;
use nvme_spec::identify::{
    IDENTIFY_BYTES, IdentifyController, IdentifyControllerNvm, cns, csi, fna, lpa, oacs, oncs, sgls, vwc,
};
use nvme_spec::namespace::{IdentifyNamespace, IdentifyNamespaceIndependent, LbaFormat, nidt, nmic, nsattr};
use nvme_spec::opcode::dsm;
use nvme_spec::vendor::SIGNATURE;
use nvme_spec::{Sqe, Status, regs};

use super::events::MAX_HELD;
use super::features::WARNING_TEMPERATURE_K;
use super::logs::ERROR_ENTRIES;
use crate::Controller;
use crate::config::{ControllerConfig, MAX_NAMESPACES, NamespaceConfig};
use crate::msix::Interrupts;
use crate::namespace::Namespace;
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
            cns::NAMESPACE => {
                if let Some(namespace) = self.identified(sqe.nsid)? {
                    put(bytes_of(&self.identify_namespace(sqe.nsid, namespace)));
                }
            }
            cns::CONTROLLER => put(bytes_of(&self.identify_controller())),
            cns::ACTIVE_NAMESPACES | cns::IOCS_ACTIVE_NAMESPACES => put(cast_slice(&self.active_namespaces(sqe.nsid)?)),
            cns::NAMESPACE_DESCRIPTORS => put(&self.namespace_descriptors(sqe.nsid)?),
            // No protection information: all of it is zero.
            cns::IOCS_NAMESPACE => {
                self.identified(sqe.nsid)?;
            }
            cns::IOCS_CONTROLLER => put(bytes_of(&self.identify_controller_nvm())),
            cns::INDEPENDENT_NAMESPACE => {
                if let Some(namespace) = self.identified(sqe.nsid)? {
                    put(bytes_of(&identify_independent(namespace)));
                }
            }
            // One combination, of the NVM command set alone.
            cns::IO_COMMAND_SETS => put(&[1 << csi::NVM]),
            _ => return Err(Status::INVALID_FIELD),
        }
        Ok(())
    }

    fn identify_controller(&self) -> IdentifyController {
        let config = &self.config;
        let all = |bits: [(bool, u16); 2]| bits.into_iter().filter(|(has, _)| *has).fold(0, |all, (_, bit)| all | bit);
        let optional = all([(config.discard, oncs::DATASET_MANAGEMENT), (config.write_zeroes, oncs::WRITE_ZEROES)]);
        let erases_by_key = self.namespaces.iter().any(|(_, it)| it.config().erases_by_key);
        let cache = if config.volatile_write_cache { vwc::PRESENT } else { 0 };
        let capacity: u128 = self.namespaces.iter().map(|(_, it)| u128::from(it.config().size_bytes)).sum();
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
            oacs: all([(self.takes_shadow_doorbells(), oacs::DOORBELL_BUFFER), (config.has_format(), oacs::FORMAT)]),
            acl: 3,
            aerl: MAX_HELD as u8 - 1,
            // One firmware slot, read only.
            frmw: 1 << 1 | 1,
            lpa: lpa::COMMANDS_EFFECTS | lpa::EXTENDED_DATA,
            elpe: ERROR_ENTRIES as u8 - 1,
            wctemp: WARNING_TEMPERATURE_K,
            cctemp: CRITICAL_TEMPERATURE_K,
            sanicap: self.sanitize_capabilities(),
            tnvmcap: [capacity as u64, (capacity >> 64) as u64],
            sqes: 6 << 4 | 6,
            cqes: 4 << 4 | 4,
            nn: MAX_NAMESPACES,
            mnan: MAX_NAMESPACES,
            oncs: oncs::COMPARE | oncs::SAVE_SELECT | oncs::VERIFY | optional,
            // Each namespace by itself, or all of them if the command says so (FNA bit 3).
            fna: if erases_by_key { fna::CRYPTO_ERASE } else { 0 },
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

    /// NSIDs above the one asked with.
    fn active_namespaces(&self, nsid: u32) -> Result<Vec<u32>, Status> {
        if nsid >= 0xffff_fffe {
            return Err(Status::INVALID_NAMESPACE);
        }
        Ok(self.namespaces.iter().map(|(active, _)| active).filter(|active| *active > nsid).collect())
    }

    /// The namespace to be described. `None`: an inactive one, which is all zeros. Without namespace management there
    /// is no form for all of them.
    fn identified(&self, nsid: u32) -> Result<Option<&Namespace>, Status> {
        let namespace = self.namespaces.get(nsid);
        let is_valid = (1..=MAX_NAMESPACES).contains(&nsid);
        if is_valid { Ok(namespace) } else { Err(Status::INVALID_NAMESPACE) }
    }

    fn identify_namespace(&self, nsid: u32, namespace: &Namespace) -> IdentifyNamespace {
        let config = namespace.config();
        let blocks = namespace.blocks.count;
        let mut data = IdentifyNamespace {
            nsze: blocks,
            ncap: blocks,
            nuse: blocks,
            nlbaf: config.lba_sizes.len() as u8 - 1,
            flbas: namespace.format_index(),
            nmic: its_nmic(config),
            fpi: namespace.format_progress(),
            nvmcap: [config.size_bytes, 0],
            nsattr: its_nsattr(config),
            nguid: identity(&self.config, nsid, config),
            ..Zeroable::zeroed()
        };
        for (format, size) in data.lbaf.iter_mut().zip(&config.lba_sizes) {
            // 4096 is the better of the two for any drive.
            let rp = u8::from(*size < 4096 && config.lba_sizes.len() > 1);
            *format = LbaFormat { ms: 0, lbads: size.trailing_zeros() as u8, rp };
        }
        data
    }

    /// Namespace identification descriptors: NGUID, UUID and command set.
    fn namespace_descriptors(&self, nsid: u32) -> Result<[u8; DESCRIPTORS_BYTES], Status> {
        let guid = identity(&self.config, nsid, self.namespaces.named(nsid)?.config());
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

fn identify_independent(namespace: &Namespace) -> IdentifyNamespaceIndependent {
    let config = namespace.config();
    IdentifyNamespaceIndependent {
        nmic: its_nmic(config),
        fpi: namespace.format_progress(),
        nsattr: its_nsattr(config),
        nstat: 1,
        ..Zeroable::zeroed()
    }
}

fn its_nmic(config: &NamespaceConfig) -> u8 {
    if config.shared { nmic::SHARED } else { 0 }
}

fn its_nsattr(config: &NamespaceConfig) -> u8 {
    if config.read_only { nsattr::WRITE_PROTECTED } else { 0 }
}

/// Text in a fixed field, padded with spaces. The configuration was checked to fit.
fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    for (byte, from) in field.iter_mut().zip(text.bytes()) {
        *byte = from;
    }
    field
}

/// The NGUID of a namespace, if not its own, stays the same as long as the subsystem's name, the serial number and the
/// NSID do. NSID 1 counts as nothing: it was the only one once.
fn identity(config: &ControllerConfig, nsid: u32, namespace: &NamespaceConfig) -> [u8; 16] {
    let later = (nsid > 1).then_some([0, nsid as u8]).into_iter().flatten();
    let made = || hash(config.subnqn.bytes().chain([0]).chain(config.serial.bytes()).chain(later));
    namespace.nguid.unwrap_or_else(made)
}

/// An NGUID for a namespace of that name, the same on every controller.
pub fn nguid(name: &str) -> [u8; 16] {
    hash(name.bytes())
}

/// FNV-1a of 128 bits.
fn hash(bytes: impl Iterator<Item = u8>) -> [u8; 16] {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.fold(OFFSET, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME)).to_be_bytes()
}
