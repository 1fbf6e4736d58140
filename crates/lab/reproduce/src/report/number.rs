//! Numbers that read well and stay the same.

/// To six significant digits: what is beyond is noise, and would differ in the last place for no reason.
pub fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    // Through the decimal text, so that the result is the shortest number that reads so.
    format!("{value:.5e}").parse().unwrap_or(value)
}

/// Three to four significant digits, no exponent, no trailing zeros; `–` for what is not a number.
pub fn short(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    let decimals = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        size if size >= 0.01 || size == 0.0 => 3,
        _ => 5,
    };
    let text = format!("{value:.decimals$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    // A minus sign, and none before a zero.
    match text.strip_prefix('-') {
        Some("0") => "0".to_owned(),
        Some(rest) => format!("−{rest}"),
        None => text.to_owned(),
    }
}

/// A tick's label: large numbers with a unit prefix.
pub fn tick(value: f64) -> String {
    match value.abs() {
        size if size >= 1e9 => short(value / 1e9) + "G",
        size if size >= 1e6 => short(value / 1e6) + "M",
        size if size >= 1e4 => short(value / 1e3) + "k",
        _ => short(value),
    }
}

/// A fraction as a signed percentage.
pub fn percent(fraction: f64) -> String {
    let percent = fraction * 100.0;
    let decimals = if percent.abs() < 9.95 { 1 } else { 0 };
    format!("{percent:+.decimals$} %").replace('-', "−")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_digits_survive() {
        assert_eq!(rounded(1.0 / 3.0), 0.333_333);
        assert_eq!(rounded(0.1 + 0.2), 0.3);
        assert_eq!(rounded(1_234_567.0), 1_234_570.0);
        assert_eq!(rounded(0.0), 0.0);
        assert!(rounded(f64::NAN).is_nan());
    }

    #[test]
    fn people_see_few_digits() {
        let seen: Vec<String> =
            [2186.4, 13.29, 2.5, 0.905, 0.0, -1.5, 7.0, -0.00001, f64::NAN].into_iter().map(short).collect();
        assert_eq!(seen, ["2186", "13.3", "2.5", "0.905", "0", "−1.5", "7", "−0.00001", "–"]);
        assert_eq!([800_000.0, 1.5e6, 2000.0].map(tick), ["800k", "1.5M", "2000"]);
        assert_eq!([0.2, -0.031].map(percent), ["+20 %", "−3.1 %"]);
    }
}
