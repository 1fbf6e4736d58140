//! Where code starts a thread.

use super::tokens::Token;

/// How often tokens start a thread: `thread::spawn(…)`, and `spawn(…)` of a builder or a scope. That of a process has
/// no argument, and that of a task is a path of another crate.
pub fn count(tokens: &[Token<'_>]) -> usize {
    let starts = |at: &usize| {
        let before = |back: usize| at.checked_sub(back).map(|at| tokens[at]);
        let is_method = before(1).is_some_and(|token| token.is("."));
        let is_function =
            before(1).is_some_and(|token| token.is("::")) && before(2).is_some_and(|token| token.is("thread"));
        let has_argument = tokens.get(at + 1).is_some_and(|token| token.is("("))
            && tokens.get(at + 2).is_some_and(|token| !token.is(")"));
        (tokens[*at].is("spawn") || tokens[*at].is("spawn_scoped")) && has_argument && (is_method || is_function)
    };
    (0..tokens.len()).filter(starts).count()
}

#[cfg(test)]
mod tests {
    use super::super::tokens::tokens;
    use super::*;

    #[test]
    fn threads_are_told_from_processes_tasks_and_functions() {
        for (text, threads) in [
            ("std::thread::spawn(work); thread::Builder::new().name(x).spawn(move || 1)?;", 2),
            ("thread::scope(|scope| { scope.spawn(|| 1); Builder::new().spawn_scoped(scope, work) })", 2),
            ("command.spawn()?; tokio::spawn(task); fn spawn(a: A) {} spawn(a); // thread::spawn(x)", 0),
        ] {
            assert_eq!(count(&tokens(text)), threads, "{text}");
        }
    }
}
