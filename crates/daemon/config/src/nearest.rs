//! "Did you mean": the known word nearest to what was written.

/// The nearest of `known` to `word` if it is near enough to be what was meant: a third of it differs, or two letters
/// that changed places.
pub(crate) fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    // Nobody means a key of this crate by a word of hundreds of letters, and the distance costs their product.
    if word.len() > 64 {
        return None;
    }
    let ranked = known.iter().map(|candidate| (distance(word, candidate), *candidate));
    let (edits, candidate) = ranked.min_by_key(|(edits, _)| *edits)?;
    let allowed = match candidate.len() {
        0..2 => 0,
        2..4 => 1,
        len => (len / 3).max(2),
    };
    (edits <= allowed).then_some(candidate)
}

/// Single-letter edits (insert, delete, replace) from one word to the other.
fn distance(from: &str, to: &str) -> usize {
    let mut costs: Vec<usize> = (0..=to.chars().count()).collect();
    for (row, a) in from.chars().enumerate() {
        let mut diagonal = row;
        let mut left = row + 1;
        if let Some(first) = costs.first_mut() {
            *first = left;
        }
        for (cost, b) in costs.iter_mut().skip(1).zip(to.chars()) {
            let replaced = diagonal + usize::from(a != b);
            diagonal = *cost;
            left = replaced.min(*cost + 1).min(left + 1);
            *cost = left;
        }
    }
    costs.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_edits() {
        for (a, b, edits) in
            [("", "", 0), ("a", "", 1), ("", "abc", 3), ("latncy", "latency", 1), ("kitten", "sitting", 3)]
        {
            assert_eq!(distance(a, b), edits, "{a} {b}");
            assert_eq!(distance(b, a), edits, "{b} {a}");
        }
    }

    #[test]
    fn only_near_words_are_suggested() {
        assert_eq!(nearest("latency_traget", &["name", "latency_target"]), Some("latency_target"));
        assert_eq!(nearest("tenants", &["tenant", "device"]), Some("tenant"));
        assert_eq!(nearest("colour", &["name", "latency_target"]), None);
        assert_eq!(nearest(&"x".repeat(100_000), &["name"]), None);
    }
}
