//! What is read once a second at most, however many ask, and given again to all of them.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use anyhow::Result;
use axum::body::{Body, Bytes};

/// How long an answer is reused: ten thousand clients cost as much as one.
pub const FRESH: Duration = Duration::from_secs(1);

/// Answers that clients have not read yet take no more than this and one: beyond it, all get the newest again.
const MAX_UNREAD_BYTES: usize = 64 << 20;

/// A text as the body of an answer, which several clients may be reading.
pub fn body(text: Arc<String>) -> Body {
    Body::from(Bytes::from_owner(Text(text)))
}

struct Text(Arc<String>);

impl AsRef<[u8]> for Text {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// The newest reading and its texts, one per format, and older ones that are still being sent.
pub struct Answers<R, F> {
    reading: Option<(Instant, Arc<R>)>,
    texts: Vec<(F, Arc<String>)>,
    unread: Vec<Weak<String>>,
}

impl<R, F> Default for Answers<R, F> {
    fn default() -> Self {
        Self { reading: None, texts: Vec::new(), unread: Vec::new() }
    }
}

impl<R, F: PartialEq> Answers<R, F> {
    /// Whether there is a reading to be given again.
    pub fn is_fresh(&self) -> bool {
        self.reading.is_some()
    }

    /// The newest, read anew if it is time to.
    ///
    /// # Errors
    /// That of `read`.
    pub fn reading(&mut self, read: impl FnOnce() -> Result<R>) -> Result<Arc<R>> {
        let is_too_much = self.is_too_much();
        match &self.reading {
            Some((at, reading)) if at.elapsed() < FRESH || is_too_much => Ok(Arc::clone(reading)),
            _ => {
                let reading = Arc::new(read()?);
                self.texts.clear();
                self.reading = Some((Instant::now(), Arc::clone(&reading)));
                Ok(reading)
            }
        }
    }

    /// The newest reading as a text.
    pub fn text(&mut self, form: F, render: impl FnOnce() -> String) -> Arc<String> {
        if let Some((_, text)) = self.texts.iter().find(|(of, _)| *of == form) {
            return Arc::clone(text);
        }
        let text = Arc::new(render());
        self.unread.push(Arc::downgrade(&text));
        self.texts.push((form, Arc::clone(&text)));
        text
    }

    /// Whether what clients have still to read is as much as it may be.
    fn is_too_much(&mut self) -> bool {
        let newest = |text: &Arc<String>| self.texts.iter().any(|(_, other)| Arc::ptr_eq(text, other));
        let mut bytes = 0;
        self.unread.retain(|text| match text.upgrade() {
            Some(text) => {
                bytes += if newest(&text) { 0 } else { text.len() };
                true
            }
            None => false,
        });
        bytes >= MAX_UNREAD_BYTES
    }

    /// There was no request for a while. Answers that are still being sent are kept by their senders.
    pub fn forget(&mut self) {
        if !self.is_too_much() {
            self.reading = None;
            self.texts.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_reads_takes_a_bounded_room() {
        let mut answers = Answers::<(), u8>::default();
        let text = |len| Arc::new(" ".repeat(len));
        let (unread, newest) = (text(MAX_UNREAD_BYTES), text(8));
        answers.unread.push(Arc::downgrade(&unread));
        answers.unread.push(Arc::downgrade(&newest));
        answers.texts.push((0, Arc::clone(&newest)));
        answers.reading = Some((Instant::now(), Arc::default()));
        assert!(answers.is_too_much());
        answers.forget();
        assert!(answers.is_fresh(), "it is given again");
        drop(unread);
        assert!(!answers.is_too_much());
        assert_eq!(answers.unread.len(), 1);
        answers.forget();
        assert!(!answers.is_fresh() && answers.texts.is_empty());
    }

    #[test]
    fn who_asks_again_gets_the_same_again() {
        let mut answers = Answers::<u32, u8>::default();
        let one = answers.reading(|| Ok(1)).unwrap();
        let text = answers.text(7, || one.to_string());
        assert_eq!(*answers.reading(|| Ok(2)).unwrap(), 1);
        assert!(Arc::ptr_eq(&text, &answers.text(7, String::new)));
        assert_eq!(*answers.text(8, || "other".to_owned()), "other");
        answers.forget();
        assert!(answers.reading(|| anyhow::bail!("ending")).is_err() && !answers.is_fresh());
        assert_eq!(*answers.reading(|| Ok(2)).unwrap(), 2);
    }
}
