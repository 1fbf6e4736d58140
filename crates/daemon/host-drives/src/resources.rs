//! The queues and interrupts of virtual functions: where a controller lends them, by Virtualization Management
//! (Base 8.26), they have none at first, and are offline.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use bytemuck::{Zeroable, bytes_of_mut};
use nvme_driver::passthrough::{self, AdminCommand, PassthroughError};
use nvme_spec::identify::cns;
use nvme_spec::opcode::admin;
use nvme_spec::virtualization::{Flexible, PrimaryCapabilities, Secondary, SecondaryList, action, resource};

use crate::refused::Refused;

const LIMIT: Duration = Duration::from_secs(30);
/// The admin queues, and one for I/O.
const QUEUES_LEAST: u16 = 2;

/// What each function gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shares {
    queues: Option<u16>,
    interrupts: Option<u16>,
}

/// Gives functions 1 to `count` of a controller what they need and sets them online. Nothing to do where the
/// controller lends nothing.
pub(crate) fn assign(controller: &Path, count: u16) -> Result<(), Refused> {
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        let what = format!("{}: {what}: {error}", controller.display());
        Refused::new("not-assigned", what, "look at `dmesg`, and at the controller's `nvme primary-ctrl-caps`")
    };
    let device = File::open(controller).map_err(|error| failed("can't be opened", &error))?;
    let mut primary = PrimaryCapabilities::zeroed();
    match identify(&device, cns::PRIMARY_CAPABILITIES, bytes_of_mut(&mut primary)) {
        Ok(()) => {}
        // Its functions come with what they have.
        Err(PassthroughError::Status(_)) => return Ok(()),
        Err(error) => return Err(failed("can't be asked for what it lends", &error)),
    }
    let Some(shares) = shares(&primary, count)? else { return Ok(()) };
    let mut list = SecondaryList::zeroed();
    identify(&device, cns::SECONDARY_LIST, bytes_of_mut(&mut list))
        .map_err(|error| failed("can't be asked for its secondary controllers", &error))?;
    let entries = &list.entries[..usize::from(list.count).min(list.entries.len())];
    let all_failed = |error: PassthroughError| failed("can't take back what it lent", &error);
    entries.iter().try_for_each(|entry| take_back(&device, entry, count)).map_err(all_failed)?;
    for number in 1..=count {
        let found = entries.iter().find(|entry| entry.vfn == number);
        let no_such = || failed("has no secondary controller", &format!("for function {number}"));
        let scid = found.ok_or_else(no_such)?.scid;
        let what = format!("function {number} (controller {scid}) can't be set up");
        set_up(&device, scid, shares).map_err(|error| failed(&what, &error))?;
    }
    Ok(())
}

/// What it has from before, it would keep from others; functions beyond `count` are offline as they do not exist.
fn take_back(device: &File, entry: &Secondary, count: u16) -> Result<(), PassthroughError> {
    if entry.vfn <= count {
        manage(device, entry.scid, action::OFFLINE, 0, 0)?;
    }
    for (kind, amount) in [(resource::QUEUES, entry.queues), (resource::INTERRUPTS, entry.interrupts)] {
        if amount > 0 {
            manage(device, entry.scid, action::ASSIGN, kind, 0)?;
        }
    }
    Ok(())
}

/// It is offline meanwhile, and online then.
fn set_up(device: &File, scid: u16, shares: Shares) -> Result<(), PassthroughError> {
    let kinds = [(resource::QUEUES, shares.queues), (resource::INTERRUPTS, shares.interrupts)];
    for (kind, amount) in kinds {
        if let Some(amount) = amount {
            manage(device, scid, action::ASSIGN, kind, amount)?;
        }
    }
    manage(device, scid, action::ONLINE, 0, 0)
}

/// What each of `count` functions gets. `None`: the controller lends nothing.
fn shares(primary: &PrimaryCapabilities, count: u16) -> Result<Option<Shares>, Refused> {
    let of = |kind: u32, flexible: &Flexible, least: u16, name: &str| -> Result<Option<u16>, Refused> {
        if u32::from(primary.crt) >> kind & 1 == 0 {
            return Ok(None);
        }
        let free = flexible.total.saturating_sub(flexible.own.into());
        let step = flexible.step.max(1);
        let each = (free / u32::from(count.max(1))).min(flexible.most.into()) as u16;
        let each = each - each % step;
        if each >= least {
            return Ok(Some(each));
        }
        let what = format!("the controller has {free} {name} to lend, too few for {count} functions, {least} each");
        let remedy = match flexible.own {
            0 => "make fewer".to_owned(),
            own => {
                let kind = format!("nvme virt-mgmt /dev/nvmeN -c {} -r {kind} -a 1 -n 0", primary.cntlid);
                format!("make fewer, or have it keep less than {own} for itself: {kind}, then nvme reset /dev/nvmeN")
            }
        };
        Err(Refused::new("too-few-resources", what, remedy))
    };
    let queues = of(resource::QUEUES, &primary.queues, QUEUES_LEAST, "queue pairs")?;
    let interrupts = of(resource::INTERRUPTS, &primary.interrupts, 1, "interrupt vectors")?;
    let none = queues.is_none() && interrupts.is_none();
    Ok((!none).then_some(Shares { queues, interrupts }))
}

fn identify(device: &File, cns: u8, data: &mut [u8]) -> Result<(), PassthroughError> {
    let command = AdminCommand { opcode: admin::IDENTIFY, nsid: 0, cdw10: cns.into(), cdw11: 0, timeout: LIMIT };
    passthrough::send(device, &command, data)
}

fn manage(device: &File, scid: u16, action: u32, kind: u32, amount: u16) -> Result<(), PassthroughError> {
    let command = AdminCommand {
        opcode: admin::VIRTUALIZATION_MANAGEMENT,
        nsid: 0,
        cdw10: action | kind << 8 | u32::from(scid) << 16,
        cdw11: amount.into(),
        timeout: LIMIT,
    };
    passthrough::send(device, &command, &mut [])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn primary(crt: u8, total: u32, own: u16, step: u16) -> PrimaryCapabilities {
        let flexible = Flexible { total, own, most: 6, step, ..Flexible::zeroed() };
        PrimaryCapabilities { crt, queues: flexible, interrupts: flexible, ..PrimaryCapabilities::zeroed() }
    }

    #[test]
    fn what_is_there_is_shared_out_in_whole_steps() {
        let shares = |primary, count| shares(&primary, count).expect("enough");
        assert_eq!(shares(primary(0, 0, 0, 0), 4), None, "nothing is lent");
        let both = |each| Some(Shares { queues: Some(each), interrupts: Some(each) });
        assert_eq!(shares(primary(3, 8, 0, 1), 4), both(2));
        assert_eq!(shares(primary(3, 64, 0, 1), 4), both(6), "no more than one can have");
        assert_eq!(shares(primary(3, 20, 0, 2), 4), both(4), "5 each, in twos");
        assert_eq!(shares(primary(1, 8, 2, 1), 2), Some(Shares { queues: Some(3), interrupts: None }));
    }

    #[test]
    fn too_little_is_refused_with_what_to_do() {
        let told = shares(&primary(3, 8, 0, 1), 5).expect_err("one each").to_string();
        assert!(
            told.contains("8 queue pairs") && told.contains("5 functions, 2 each") && told.contains("fewer"),
            "{told}"
        );
        let told = shares(&primary(3, 8, 8, 1), 1).expect_err("none is free").to_string();
        assert!(told.contains("nvme virt-mgmt") && told.contains("keep less than 8"), "{told}");
    }
}
