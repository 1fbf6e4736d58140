//! A drive that is erased as a whole, by its own means, while it has no disks: until that is over it is held.
//!
//! The daemon may send a drive no such command. Whoever asks does (`evenkeel drive sanitize`), and tells when it begins
//! and how it ended; in between, also over restarts, nothing is placed there and no command is sent.

use api::{Drive, EventKind, Problem, SanitizeStep};
use client_socket::Level;
use io_model::units::Size;

use crate::owner::Owner;
use crate::problems::{drive_missing, no_such_drive, not_durable};
use crate::served_drive::ServedDrive;

impl Owner {
    /// Takes a step of sanitizing a drive; one that was taken already is as good.
    pub(crate) fn sanitize(&mut self, name: &str, step: SanitizeStep) -> Result<Drive, Problem> {
        if let Some(missing) = self.absent.drive(name) {
            return Err(drive_missing(missing));
        }
        let (id, _) = self.drive_named(name).ok_or_else(|| no_such_drive(name))?;
        let drive = self.drives.get_mut(&id).ok_or_else(|| no_such_drive(name))?;
        match step {
            SanitizeStep::Begins => drive.hold()?,
            SanitizeStep::Ended => drive.end_sanitize(true)?,
            SanitizeStep::GivenUp => drive.end_sanitize(false)?,
        }
        Ok(drive.describe())
    }
}

impl ServedDrive {
    /// Whether it is to be sanitized.
    pub(crate) fn is_held(&self) -> bool {
        self.layout.layout().is_some_and(layout::Layout::is_sanitizing)
    }

    /// # Errors
    /// It is held: nobody gets a disk there.
    pub(crate) fn refuse_if_held(&self) -> Result<(), Problem> {
        if !self.is_held() {
            return Ok(());
        }
        let name = &self.config.device.name;
        let remedy = format!(
            "name another drive, or wait until that is over; `evenkeel drive sanitize {name}` goes on with it where \
             nothing does"
        );
        Err(Problem::new(409, "sanitizing", format!("drive {name:?} is being sanitized"), remedy))
    }

    /// After a start, what an operator should know.
    pub(crate) fn tell_if_held(&self) {
        if self.is_held() {
            let name = &self.config.device.name;
            let line = format!(
                "drive {name:?} is being sanitized, and has no disks until then: `evenkeel drive sanitize {name}` goes \
                 on with it"
            );
            (self.around.sink)(Level::Warn.of_drive(name), &line);
        }
    }

    /// Durably first. Returns once nothing is in flight to the drive.
    fn hold(&mut self) -> Result<(), Problem> {
        let name = self.config.device.name.clone();
        if self.layout.path().is_none() {
            let title = format!("drive {name:?} is empty at each start");
            return Err(Problem::new(409, "not-kept", title, "start the daemon again"));
        }
        let placed = self.layout.layout().map(|layout| layout.placements()).unwrap_or_default();
        let disks: Vec<&str> = placed.iter().map(|placement| placement.name.as_str()).collect();
        if !disks.is_empty() {
            let title = format!("drive {name:?} has disks: {}", disks.join(", "));
            return Err(Problem::new(
                409,
                "not-empty",
                title,
                "delete them first; sanitizing a drive erases all of it",
            ));
        }
        if self.wipes.is_any_leaving() || !self.tenants.is_empty() {
            let title = format!("a deleted disk is still leaving drive {name:?}");
            return Err(Problem::new(503, "not-quiet", title, "ask again"));
        }
        if !self.is_held() {
            self.layout.begin_sanitize().map_err(|error| not_durable(&error))?;
            self.tell_of(EventKind::DriveSanitizing, "held, to be sanitized");
        }
        self.refuse_unless_quiet()
    }

    /// What the wiper still has in flight may be written at any time, over whoever gets that place by then.
    fn refuse_unless_quiet(&mut self) -> Result<(), Problem> {
        if self.stop_wiper() {
            return Ok(());
        }
        let name = &self.config.device.name;
        let title = format!("drive {name:?} is held, and has not yet answered what the wiper sent it before");
        Err(Problem::new(503, "not-quiet", title, "ask again"))
    }

    fn end_sanitize(&mut self, is_erased: bool) -> Result<(), Problem> {
        if !self.is_held() {
            return Ok(());
        }
        if is_erased {
            // Whoever says so may not have waited for an answer when it began.
            self.refuse_unless_quiet()?;
        }
        let former = self.layout.layout().map(|layout| layout.wiping().to_vec()).unwrap_or_default();
        self.layout.end_sanitize(is_erased).map_err(|error| not_durable(&error))?;
        self.wipes.try_failed_again();
        if is_erased {
            for range in former {
                self.events.tell(EventKind::Wiped, Some(&range.former), Some(Size(range.size_bytes).to_string()));
            }
            self.tell_of(EventKind::DriveSanitized, "sanitized; it holds nothing of former disks");
        } else {
            self.tell_of(EventKind::SanitizeGivenUp, "held no more, and not sanitized; what disks left is overwritten");
        }
        self.wipe_next();
        Ok(())
    }

    fn tell_of(&self, kind: EventKind, what: &str) {
        let name = &self.config.device.name;
        (self.around.sink)(Level::Info.of_drive(name), &format!("drive {name}: {what}"));
        self.events.tell(kind, None, Some(name.clone()));
    }
}
