//! What each format says, what becomes of imperfect lines, and what is told of bad ones.

mod by_format;
mod errors;
mod hostile;
mod rules;
