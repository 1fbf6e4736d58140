//! What a command of a random run must end as, by a model of the disk.

use std::ops::Range;

use nvme_spec::opcode::nvm;
use nvme_spec::{Cqe, Status};

use crate::host::Host;

pub enum Expect {
    Data { at: u64, bytes: Vec<u8> },
    Success,
    Failure(Status),
}

impl Expect {
    /// Of a read, write or compare of `range` with the guest's buffer `at`, which is filled; the model has the write
    /// from now on. `salt` is what data are made of, and whether they differ.
    pub fn transfer(host: &Host, model: &mut [u8], opc: u8, at: u64, range: Range<usize>, salt: u64) -> Self {
        let len = range.len() as u64;
        match opc {
            nvm::READ => {
                host.write(at, &vec![0xee; range.len()]);
                Self::Data { at, bytes: model[range].to_vec() }
            }
            nvm::WRITE => {
                let data: Vec<u8> = (0..len).map(|n| (n.wrapping_mul(salt | 1) >> 13) as u8).collect();
                host.write(at, &data);
                model[range].copy_from_slice(&data);
                Self::Success
            }
            _ => {
                let mut data = model[range].to_vec();
                let differs = salt.is_multiple_of(2);
                data[(salt % len) as usize] ^= u8::from(differs);
                host.write(at, &data);
                if differs { Self::Failure(Status::COMPARE_FAILURE) } else { Self::Success }
            }
        }
    }

    pub fn check(&self, host: &Host, cqe: &Cqe) {
        match self {
            Self::Success => assert_eq!(cqe.status(), Status::SUCCESS),
            Self::Failure(status) => assert_eq!(cqe.status().code(), *status),
            Self::Data { at, bytes } => {
                assert_eq!(cqe.status(), Status::SUCCESS);
                assert!(host.read(*at, bytes.len()) == *bytes, "read something else than was written");
            }
        }
    }
}
