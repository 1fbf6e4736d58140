//! The web page that shows which tenants harm others: HTML, style and script in one answer.
//!
//! It requests its figures itself (`GET /live`), and contains no secrets.

#![forbid(unsafe_code)]

use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

/// Where style and script go.
const FRAME: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
/// One script, in files by what they do; each uses those before it.
const SCRIPT: &str = concat!(
    include_str!("words.js"),
    include_str!("asking.js"),
    include_str!("drives.js"),
    include_str!("tenants.js"),
    include_str!("detail.js"),
    include_str!("page.js"),
);

const STYLE_PLACE: &str = "/* style */";
const SCRIPT_PLACE: &str = "/* script */";

static HTML: LazyLock<String> =
    LazyLock::new(|| FRAME.replacen(STYLE_PLACE, STYLE, 1).replacen(SCRIPT_PLACE, SCRIPT, 1));

/// Nothing runs or is fetched but what is in the page: a name that comes from a guest could do nothing even if it were
/// taken for HTML. By their hashes, which `LazyLock` computes once.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
        source_hash(SCRIPT),
        source_hash(STYLE)
    )
});

/// A text between its tags, as a source of Content Security Policy Level 3 (2.3.1).
fn source_hash(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(Sha256::digest(text)))
}

/// The page.
pub fn html() -> &'static str {
    &HTML
}

/// Headers that go with it, names in lower case.
pub fn headers() -> [(&'static str, &'static str); 5] {
    [
        ("content-type", "text/html; charset=utf-8"),
        ("content-security-policy", &POLICY),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-store"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_is_of_what_stands_between_the_tags() {
        let between = |from: &str, to: &str| {
            let (_, rest) = html().split_once(from).expect("it begins");
            rest.split_once(to).expect("it ends").0
        };
        let (style, script) = (between("<style>", "</style>"), between("<script type=\"module\">", "</script>"));
        assert!(style == STYLE && script == SCRIPT);
        let policy = headers().into_iter().find(|(name, _)| *name == "content-security-policy").expect("a policy").1;
        for text in [style, script] {
            assert!(policy.contains(&format!("'{}'", source_hash(text))), "{policy}");
        }
        // The hash of nothing, as every implementation has it.
        assert_eq!(source_hash(""), "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=");
    }

    #[test]
    fn nothing_is_asked_of_others_nor_taken_for_html() {
        for word in
            ["http:", "//cdn", "@import", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("]
        {
            assert!(!html().contains(word), "{word}");
        }
        assert!(!FRAME.contains("style=") && !FRAME.contains(" on"), "the policy would forbid it");
    }
}
