//! The drive model in virtual time.

mod arbitration;
mod nand;
mod profiles;
mod timing;
