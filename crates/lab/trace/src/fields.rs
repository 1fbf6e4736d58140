//! Fields of a line, as bytes: nothing is allocated or checked for UTF-8 on the way.

use crate::formats::Refusal;

/// Fields of a line, from the left.
pub(crate) trait Fields<'a> {
    /// The next field; `None` at the end of the line.
    fn next_field(&mut self) -> Option<&'a [u8]>;

    /// The next field, whatever is in it, refused if there is none.
    fn any(&mut self, expected: &'static str) -> Result<&'a [u8], Refusal<'a>> {
        self.next_field().ok_or(Refusal { expected, found: b"" })
    }

    /// The next field as a decimal number.
    fn number(&mut self, expected: &'static str) -> Result<u64, Refusal<'a>> {
        let found = self.any(expected)?;
        decimal(found).ok_or(Refusal { expected, found })
    }
}

/// Fields between runs of blanks and tabs.
pub(crate) struct Words<'a>(pub &'a [u8]);

impl<'a> Fields<'a> for Words<'a> {
    fn next_field(&mut self) -> Option<&'a [u8]> {
        let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
        let start = self.0.iter().position(|byte| !blank(byte))?;
        let rest = self.0.get(start..)?;
        let end = rest.iter().position(blank).unwrap_or(rest.len());
        let (word, rest) = rest.split_at(end);
        self.0 = rest;
        Some(word)
    }
}

/// Fields between commas, without blanks around them.
pub(crate) struct Commas<'a>(pub Option<&'a [u8]>);

impl<'a> Fields<'a> for Commas<'a> {
    fn next_field(&mut self) -> Option<&'a [u8]> {
        let rest = self.0?;
        let field = match rest.iter().position(|&byte| byte == b',') {
            Some(comma) => {
                self.0 = rest.get(comma + 1..);
                rest.get(..comma)?
            }
            None => {
                self.0 = None;
                rest
            }
        };
        Some(field.trim_ascii())
    }
}

/// An unsigned decimal number, digits only; `None` if it is none or does not fit 64 bits.
pub(crate) fn decimal(digits: &[u8]) -> Option<u64> {
    /// This many digits fit whatever they are, so almost every number goes without the checks.
    const SAFE_DIGITS: usize = 19;
    let (head, tail) = digits.split_at_checked(SAFE_DIGITS).unwrap_or((digits, b""));
    if head.is_empty() {
        return None;
    }
    let mut value = 0u64;
    for &byte in head {
        value = value * 10 + digit(byte)?;
    }
    tail.iter().try_fold(value, |value, &byte| value.checked_mul(10)?.checked_add(digit(byte)?))
}

fn digit(byte: u8) -> Option<u64> {
    let digit = byte.wrapping_sub(b'0');
    (digit <= 9).then_some(u64::from(digit))
}

/// `seconds.fraction` with up to nine digits of fraction, in nanoseconds.
pub(crate) fn seconds(text: &[u8]) -> Option<u64> {
    let point = text.iter().position(|&byte| byte == b'.')?;
    let (whole, fraction) = (text.get(..point)?, text.get(point + 1..)?);
    if fraction.len() > 9 {
        return None;
    }
    let scale = (fraction.len()..9).fold(1u64, |scale, _| scale * 10);
    decimal(whole)?.checked_mul(1_000_000_000)?.checked_add(decimal(fraction)?.checked_mul(scale)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals() {
        assert_eq!(decimal(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(decimal(b"007"), Some(7));
        for text in [&b""[..], b"18446744073709551616", b"+1", b"-1", b"1 ", b"0x1", b"1/", b"1:"] {
            assert_eq!(decimal(text), None, "{text:?}");
        }
    }

    #[test]
    fn fractions_of_seconds() {
        assert_eq!(seconds(b"12.000000034"), Some(12_000_000_034));
        assert_eq!(seconds(b"0.5"), Some(500_000_000));
        for text in [&b"1"[..], b"1.", b".5", b"1.0000000000", b"1.2.3", b"99999999999.0"] {
            assert_eq!(seconds(text), None, "{text:?}");
        }
    }

    #[test]
    fn fields_between_commas_may_be_empty() {
        let mut fields = Commas(Some(b"a,, b ,"));
        let all: Vec<_> = std::iter::from_fn(|| fields.next_field()).collect();
        assert_eq!(all, [&b"a"[..], b"", b"b", b""]);
    }
}
