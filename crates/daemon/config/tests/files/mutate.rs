//! A good file, spoilt at random.

use fastrand::Rng;

/// Pieces that mean something in a configuration, so that mutations reach beyond the TOML parser.
const PIECES: &[&str] = &[
    "\"",
    "[[tenant]]\n",
    "[device]\n",
    "=",
    "\n",
    "0",
    "-",
    "18446744073709551615",
    "\"9EiB\"",
    "16GiB",
    "4096",
    "µ",
    "name = \"db\"\n",
    "offset = \"1MiB\"\n",
    "weight = 3\n",
    "frontend = \"vhost-user-blk\"\n",
    "threads = \"per-queue\"\n",
    "mode = \"polling\"\n",
    "read_only = true\n",
    "class = \"guaranteed\"\n",
    "{",
    "[",
    ",",
    "\\u0000",
    "true",
    "1e309",
    "1979-05-27",
    "cpus = [0, 0]\n",
    "\u{1b}[0m",
    "\t",
    "'''",
    "#",
    "size = \"8GiB\"\n",
    "0x7f",
    "nan",
    "name = \"drr\"\n",
    "max_in_flight = 8\n",
    "rw_iops = \"1k\"\n",
    "kind = \"open\"\n",
    "count = 1024\n",
    "bs = \"4k/10:8k/90\"\n",
    "[[fault]]\nkind = \"reset\"\nat = \"1ms\"\ntenant = \"db\"\n",
    "[tenant.workload]\n",
    "policies = [\"k2\"]\n",
    "4k/",
];

/// A few pieces of the text taken out, put in, or copied elsewhere.
pub fn mutate(random: &mut Rng, text: &str) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    for _ in 0..=random.usize(..6) {
        let at = random.usize(..chars.len() + 1);
        let len = random.usize(..24).min(chars.len() - at);
        match random.usize(..4) {
            0 => drop(chars.drain(at..at + len)),
            1 => {
                let piece = PIECES[random.usize(..PIECES.len())];
                drop(chars.splice(at..at + len, piece.chars()));
            }
            2 => {
                let piece = PIECES[random.usize(..PIECES.len())];
                drop(chars.splice(at..at, piece.chars()));
            }
            _ => {
                let copy: Vec<char> = chars[at..at + len].to_vec();
                let to = random.usize(..chars.len() + 1);
                drop(chars.splice(to..to, copy));
            }
        }
    }
    chars.into_iter().collect()
}

/// A few lines of the text moved, taken out or doubled.
pub fn mutate_lines(random: &mut Rng, text: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    for _ in 0..=random.usize(..4) {
        let (from, to) = (random.usize(..lines.len()), random.usize(..lines.len()));
        match random.usize(..3) {
            0 => lines.swap(from, to),
            1 => drop(lines.remove(from)),
            _ => lines.insert(to, lines[from]),
        }
    }
    lines.join("\n")
}
