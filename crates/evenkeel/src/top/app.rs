//! What `evenkeel top` knows, and what keys do.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, VecDeque};

use api::{Event, Snapshot, TenantRow};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Spans of which a tenant's 99th percentile is remembered.
const REMEMBERED: usize = 120;
/// Events that are remembered.
const EVENTS: usize = 50;
/// Rows of a page.
const PAGE: isize = 10;

/// What becomes of the program after a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Does {
    GoesOn,
    End,
}

/// What decides which row is first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Broken promises, the worst first; then who moves most.
    Worst,
    Name,
    Iops,
    Bandwidth,
    P99,
}

impl Order {
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Worst => "broken promises, then MB/s",
            Self::Name => "name",
            Self::Iops => "IOPS",
            Self::Bandwidth => "MB/s",
            Self::P99 => "p99",
        }
    }

    fn next(self) -> Self {
        match self {
            Self::Worst => Self::Name,
            Self::Name => Self::Iops,
            Self::Iops => Self::Bandwidth,
            Self::Bandwidth => Self::P99,
            Self::P99 => Self::Worst,
        }
    }

    fn compare(self, a: &TenantRow, b: &TenantRow) -> Ordering {
        let most = |of: fn(&TenantRow) -> f64| of(b).total_cmp(&of(a));
        let first = match self {
            Self::Worst => most(excess).then(most(|row| row.bw_bytes)),
            Self::Name => Ordering::Equal,
            Self::Iops => most(|row| row.iops),
            Self::Bandwidth => most(|row| row.bw_bytes),
            Self::P99 => most(|row| row.p99_us),
        };
        first.then_with(|| a.name.cmp(&b.name))
    }
}

/// By how much a broken promise is missed, as a multiple of its target; 0: it is kept, or there is none.
fn excess(row: &TenantRow) -> f64 {
    match (row.kept, row.latency_target_us) {
        (Some(false), Some(target_us)) if target_us > 0.0 => row.p99_us / target_us,
        _ => 0.0,
    }
}

/// All that is on the screen.
pub struct App {
    drive: Option<String>,
    pub snapshot: Option<Snapshot>,
    /// The last events, the newest first.
    pub events: VecDeque<Event>,
    /// Each tenant's 99th percentiles in µs, the last one last.
    history: HashMap<String, VecDeque<f64>>,
    /// Why nothing new comes.
    pub lost: Option<String>,
    pub is_held: bool,
    pub order: Order,
    pub shows_details: bool,
    /// By name: rows change places.
    selected: Option<String>,
    /// Places of the rows in the snapshot, in the order in which they are shown.
    rows: Vec<usize>,
    /// Per tenant: the tenants whose promises it breaks.
    hurts: BTreeMap<String, Vec<String>>,
}

impl App {
    /// Shows tenants of one drive, or of all.
    pub fn new(drive: Option<String>) -> Self {
        Self {
            drive,
            snapshot: None,
            events: VecDeque::new(),
            history: HashMap::new(),
            lost: None,
            is_held: false,
            order: Order::Worst,
            shows_details: true,
            selected: None,
            rows: Vec::new(),
            hurts: BTreeMap::new(),
        }
    }

    /// Takes the daemon's figures and its new events. Whether the screen changes.
    pub fn take(&mut self, snapshot: Snapshot, events: Vec<Event>) -> bool {
        events.into_iter().for_each(|event| self.events.push_front(event));
        self.events.truncate(EVENTS);
        for row in &snapshot.tenants {
            let past = self.history.entry(row.name.clone()).or_default();
            past.push_back(row.p99_us);
            if past.len() > REMEMBERED {
                past.pop_front();
            }
        }
        self.history.retain(|name, _| snapshot.tenants.iter().any(|row| row.name == *name));
        let was_lost = self.lost.take().is_some();
        if self.is_held {
            return was_lost;
        }
        self.hurts.clear();
        for row in &snapshot.tenants {
            if let Some(neighbour) = row.blame.as_ref().and_then(|blame| blame.neighbour.clone()) {
                self.hurts.entry(neighbour).or_default().push(row.name.clone());
            }
        }
        self.snapshot = Some(snapshot);
        self.sort();
        true
    }

    /// The daemon doesn't answer.
    pub fn lost(&mut self, why: String) -> bool {
        self.lost = Some(why);
        true
    }

    fn sort(&mut self) {
        let Some(snapshot) = &self.snapshot else { return };
        let (tenants, drive) = (&snapshot.tenants, &self.drive);
        self.rows.clear();
        let is_shown = |row: &TenantRow| drive.as_ref().is_none_or(|drive| row.drive == *drive);
        self.rows.extend((0..tenants.len()).filter(|&at| is_shown(&tenants[at])));
        self.rows.sort_by(|&a, &b| self.order.compare(&tenants[a], &tenants[b]));
    }

    /// The tenants that are shown, in order.
    pub fn tenants(&self) -> impl ExactSizeIterator<Item = &TenantRow> {
        let tenants = self.snapshot.as_ref().map_or(&[][..], |snapshot| &snapshot.tenants);
        self.rows.iter().map(|&at| &tenants[at])
    }

    /// The row of the selected tenant; the first one if none was selected.
    pub fn place(&self) -> Option<usize> {
        let chosen = self.tenants().position(|row| Some(&row.name) == self.selected.as_ref());
        chosen.or((!self.rows.is_empty()).then_some(0))
    }

    /// The chosen one.
    pub fn chosen(&self) -> Option<&TenantRow> {
        self.tenants().nth(self.place()?)
    }

    /// A tenant's 99th percentiles in µs, the last one last.
    pub fn past(&self, name: &str) -> impl DoubleEndedIterator<Item = f64> {
        self.history.get(name).into_iter().flatten().copied()
    }

    /// The tenants whose promises this tenant breaks.
    pub fn hurt_by(&self, name: &str) -> &[String] {
        self.hurts.get(name).map_or(&[], Vec::as_slice)
    }

    fn choose(&mut self, by: isize) {
        let Some(place) = self.place() else { return };
        let place = place.saturating_add_signed(by).min(self.rows.len() - 1);
        let chosen = self.tenants().nth(place).map(|row| row.name.clone());
        self.selected = chosen;
    }

    /// What a key does.
    pub fn key(&mut self, key: KeyEvent) -> Does {
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Does::End,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Does::End,
            KeyCode::Down | KeyCode::Char('j') => self.choose(1),
            KeyCode::Up | KeyCode::Char('k') => self.choose(-1),
            KeyCode::PageDown => self.choose(PAGE),
            KeyCode::PageUp => self.choose(-PAGE),
            KeyCode::Home => self.choose(isize::MIN),
            KeyCode::End => self.choose(isize::MAX),
            KeyCode::Enter => self.shows_details = !self.shows_details,
            KeyCode::Char(' ') => self.is_held = !self.is_held,
            KeyCode::Char('s') => {
                self.order = self.order.next();
                self.sort();
            }
            _ => {}
        }
        Does::GoesOn
    }
}
