//! Waiting for what another process does.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

/// Time between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// Looks until `look` finds `what`, which the error names.
///
/// # Errors
/// What `look` fails with, or that it found nothing for as long as `limit`.
pub fn for_this<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        ensure!(Instant::now() < deadline, "waited {} s in vain for {what}", limit.as_secs());
        thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_is_handed_on_and_what_does_not_is_named() {
        let mut looks = 0;
        let found = for_this("a third look", Duration::from_secs(60), || {
            looks += 1;
            Ok((looks == 3).then_some(looks))
        });
        assert_eq!(found.unwrap(), 3);
        let error = for_this::<()>("rain", Duration::ZERO, || Ok(None)).unwrap_err();
        assert_eq!(error.to_string(), "waited 0 s in vain for rain");
        assert!(for_this::<()>("rain", Duration::from_secs(60), || anyhow::bail!("the sky fell")).is_err());
    }
}
