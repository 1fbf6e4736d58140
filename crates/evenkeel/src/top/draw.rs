//! The screen of `evenkeel top`.

use api::{PollerRow, Snapshot, TenantRow};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Table, TableState, Wrap};

use super::app::App;
use crate::table;

/// Spans that a row's chart shows.
const CHART_SPANS: usize = 24;
/// Lines of what is known of the chosen tenant, with its border; shown where the screen has three times as many.
const DETAILS: u16 = 9;
/// Lines of the summary.
const SUMMARY: u16 = 3;

/// A column: what stands above it, how wide it is, and what a tenant has in it.
struct Column {
    title: &'static str,
    width: u16,
    cell: fn(&App, &TenantRow) -> Line<'static>,
}

/// From the left; what finds no room is left out, by `RANKS`.
const COLUMNS: [Column; 12] = [
    Column { title: "tenant", width: 16, cell: |_, row| Line::raw(row.name.clone()) },
    Column { title: "drive", width: 10, cell: |_, row| Line::raw(row.drive.clone()) },
    Column { title: "promise", width: 18, cell: |_, row| Line::raw(table::promise(row)) },
    Column { title: "said", width: 6, cell: |_, row| said(row) },
    Column { title: "IOPS", width: 7, cell: |_, row| number(table::count(row.iops)) },
    Column { title: "MB/s", width: 8, cell: |_, row| number(format!("{:.1}", row.bw_bytes / 1e6)) },
    Column { title: "mean", width: 8, cell: |_, row| number(table::span(row.mean_us)) },
    Column { title: "p99", width: 8, cell: |_, row| number(table::span(row.p99_us)) },
    Column { title: "expected", width: 8, cell: |_, row| number(foreseen(row)) },
    Column { title: "key", width: 6, cell: |_, row| key(row) },
    Column { title: "p99 over time", width: CHART_SPANS as u16, cell: |app, row| chart(app, row) },
    Column { title: "who hurts whom", width: 30, cell: |app, row| between(app, row) },
];

/// Places in `COLUMNS`, the most wanted first.
const RANKS: [usize; 12] = [0, 7, 3, 11, 2, 4, 5, 10, 6, 8, 9, 1];

/// Draws all of it, as far as there is room.
pub fn draw(frame: &mut Frame<'_>, app: &mut App) {
    let has_details = app.shows_details && frame.area().height >= 3 * DETAILS && app.chosen().is_some();
    let details = if has_details { DETAILS } else { 0 };
    // Events take the lines that tenants, their heading and an empty line leave.
    let taken = details + SUMMARY + 1 + app.tenants().len().min(usize::from(u16::MAX) / 2) as u16 + 2;
    let lines = [SUMMARY, frame.area().height.saturating_sub(taken), details, 1];
    let [top, events, bottom, keys] = lines.map(Constraint::Length);
    let parts = [top, Constraint::Min(1), events, bottom, keys];
    let [top, tenants, events, bottom, keys] = Layout::vertical(parts).areas(frame.area());
    frame.render_widget(Paragraph::new(summary(app)), top);
    draw_tenants(frame, app, tenants);
    let newest = app.events.iter().take(events.height.into()).map(|event| Line::raw(crate::events::line(event)));
    frame.render_widget(Paragraph::new(newest.collect::<Vec<_>>()).style(Modifier::DIM), events);
    if let Some(row) = app.chosen().filter(|_| has_details) {
        let title = Line::from(format!(" {} ", row.name)).style(Modifier::BOLD);
        let known = Paragraph::new(known(app, row)).wrap(Wrap { trim: true });
        frame.render_widget(known.block(Block::bordered().title(title)), bottom);
    }
    let held = if app.is_held { "HELD  " } else { "" };
    let line = format!(
        "{held}q ends  ↑↓ choose  Enter details  space {}  s sorts, now by {}",
        if app.is_held { "goes on" } else { "holds" },
        app.order.in_words()
    );
    frame.render_widget(Paragraph::new(line).style(Modifier::DIM), keys);
}

/// How it is, in three lines: the answer before any row is read.
fn summary(app: &App) -> Vec<Line<'static>> {
    let Some(snapshot) = &app.snapshot else { return vec![Line::raw("waiting for the daemon's first answer")] };
    let policies: Vec<_> = snapshot.drives.iter().map(|it| format!("{} on {}", it.policy, it.drive)).collect();
    let (mut kept, mut iops, mut bw_bytes) = (0, 0.0, 0.0);
    let mut broken = Vec::new();
    for row in app.tenants() {
        iops += row.iops;
        bw_bytes += row.bw_bytes;
        match row.kept {
            Some(true) => kept += 1,
            Some(false) => broken.push(&row.name[..]),
            None => {}
        }
    }
    let totals = format!(
        "{} tenants  {} IOPS  {:.1} MB/s  {}  over {} ms",
        app.tenants().len(),
        table::count(iops),
        bw_bytes / 1e6,
        policies.join(", "),
        snapshot.span_ms
    );
    let state = match (&app.lost, broken.is_empty()) {
        (Some(why), _) => Line::styled(format!("no answer, showing the last figures: {why}"), Color::Yellow),
        (None, true) => Line::raw(format!("promises: {kept} kept, none broken")),
        (None, false) => {
            let words = format!("promises: {kept} kept, {} BROKEN: {}", broken.len(), broken.join(", "));
            Line::styled(words, bad())
        }
    };
    vec![Line::raw(totals), state, host(snapshot)]
}

/// The pollers, and their wait for CPUs.
fn host(snapshot: &Snapshot) -> Line<'static> {
    let most = |figure: fn(&PollerRow) -> f64| snapshot.pollers.iter().map(figure).fold(0.0, f64::max);
    let (busy, waited) = (most(|it| it.busy_percent), most(|it| it.cpu_wait_percent));
    let words = format!(
        "host: {} pollers, the busiest {busy:.0} % of the time; the longest wait for a CPU {waited:.1} %",
        snapshot.pollers.len()
    );
    Line::styled(words, if waited > 10.0 { Color::Yellow } else { Color::Reset })
}

fn draw_tenants(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let columns = columns_for(area.width);
    let heading = Row::new(columns.iter().map(|column| column.title)).style(Modifier::UNDERLINED);
    // Rows that are out of sight are not made: there may be thousands.
    let room = usize::from(area.height.saturating_sub(1)).max(1);
    let place = app.place().unwrap_or(0);
    let first = place.saturating_sub(room / 2).min(app.tenants().len().saturating_sub(room));
    let rows = app.tenants().skip(first).take(room).map(|row| {
        let style = if row.kept == Some(false) { bad() } else { Style::new() };
        Row::new(columns.iter().map(|column| Cell::new((column.cell)(app, row)))).style(style)
    });
    let widths = columns.iter().map(|column| Constraint::Length(column.width));
    let tenants = Table::new(rows, widths).header(heading).row_highlight_style(Modifier::REVERSED);
    let mut state = TableState::new().with_selected(app.place().map(|place| place - first));
    frame.render_stateful_widget(tenants, area, &mut state);
}

/// The columns that there is room for.
fn columns_for(width: u16) -> Vec<&'static Column> {
    let mut left = width;
    let mut has_room = [false; COLUMNS.len()];
    for at in RANKS {
        let wanted = COLUMNS[at].width + 1;
        has_room[at] = at == 0 || left >= wanted;
        if has_room[at] {
            left = left.saturating_sub(wanted);
        }
    }
    COLUMNS.iter().zip(has_room).filter_map(|(column, has_room)| has_room.then_some(column)).collect()
}

fn number(text: String) -> Line<'static> {
    Line::raw(text).right_aligned()
}

/// Not by colour alone.
fn bad() -> Style {
    Style::new().fg(Color::Red).add_modifier(Modifier::BOLD)
}

fn said(row: &TenantRow) -> Line<'static> {
    Line::raw(match row.kept {
        Some(true) => "kept",
        Some(false) => "BROKEN",
        None => "-",
    })
}

fn key(row: &TenantRow) -> Line<'static> {
    Line::styled(table::key(row), if row.locked { Color::Yellow } else { Color::Reset })
}

fn foreseen(row: &TenantRow) -> String {
    row.predicted.as_ref().map_or("-".to_owned(), |predicted| table::span(predicted.p99_us))
}

/// What broke this tenant's promise, or which promises this tenant breaks.
fn between(app: &App, row: &TenantRow) -> Line<'static> {
    let hurts = app.hurt_by(&row.name);
    let mut spans = Vec::new();
    if let Some(blame) = &row.blame {
        let who = match (&blame.neighbour, blame.culprit.as_str()) {
            (Some(name), _) => name.clone(),
            (None, "own") => "its own load".to_owned(),
            (None, culprit) => format!("the {culprit}"),
        };
        spans.push(Span::raw(format!("hurt by {who}")));
    }
    if !hurts.is_empty() {
        let gap = if spans.is_empty() { "" } else { "; " };
        spans.push(Span::styled(format!("{gap}hurts {}", hurts.join(", ")), Color::Yellow));
    }
    Line::from(spans)
}

/// A bar for each span, the highest of them full.
fn chart(app: &App, row: &TenantRow) -> Line<'static> {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let mut last: Vec<f64> = app.past(&row.name).rev().take(CHART_SPANS).collect();
    last.reverse();
    let highest = last.iter().copied().fold(0.0, f64::max);
    let bar = |&us: &f64| match us > 0.0 {
        // A span without a command has none.
        true => BARS[((us / highest * BARS.len() as f64) as usize).min(BARS.len() - 1)],
        false => ' ',
    };
    Line::raw(last.iter().map(bar).collect::<String>())
}

/// What is known of one tenant, in words.
fn known(app: &App, row: &TenantRow) -> Vec<Line<'static>> {
    let mut lines = vec![Line::raw(format!(
        "{} on {}, {}; {} IOPS, {:.1} MB/s, {} errors",
        row.class,
        row.drive,
        table::promise(row),
        table::count(row.iops),
        row.bw_bytes / 1e6,
        row.errors
    ))];
    lines.push(Line::raw(format!(
        "mean {} = {} waiting + {} with the drive; p50 {}, p99 {}, p99.9 {}",
        table::span(row.mean_us),
        table::span(row.waited_us),
        table::span(row.served_us),
        table::span(row.p50_us),
        table::span(row.p99_us),
        table::span(row.p999_us)
    )));
    if let Some(owner) = &row.encryption {
        let words = if row.locked { ", which is not here: no client can attach" } else { "" };
        lines.push(Line::raw(format!("encrypted with a key of the {owner}{words}")));
    }
    if let Some(predicted) = &row.predicted {
        lines.push(Line::raw(format!(
            "foreseen for its {} load: {} IOPS, mean {}, p99 {}",
            predicted.demand,
            table::count(predicted.iops),
            table::span(predicted.mean_us),
            table::span(predicted.p99_us)
        )));
    }
    let vouched = |us| format!("; the policy vouches for {} with a drive that serves in order", table::span(us));
    let bound = row.bound_us.map(vouched);
    if let Some(target_us) = row.latency_target_us {
        lines.push(Line::raw(format!(
            "promised {}{}; {} commands were late in this span{}",
            table::span(target_us),
            table::of_commands(row.latency_percentile),
            row.violations,
            bound.unwrap_or_default()
        )));
    }
    if let Some(blame) = &row.blame {
        lines.push(Line::styled(format!("its promise fails by {}", blame.in_words()), bad()));
    }
    let hurts = app.hurt_by(&row.name);
    if !hurts.is_empty() {
        let words = format!(
            "it breaks the promise of {}: `evenkeel disk set {} --rw-iops N` limits it",
            hurts.join(", "),
            row.name
        );
        lines.push(Line::styled(words, Color::Yellow));
    }
    lines
}

#[cfg(test)]
mod tests {
    use api::{BlameRow, DrivePolicy, Snapshot};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent};

    use super::*;
    use crate::top::app::Does;

    fn tenant(name: &str, more: serde_json::Value) -> TenantRow {
        let mut row = serde_json::json!({
            "name": name, "drive": "fast", "class": "best-effort", "weight": 1, "overcommit": false, "demand": "",
            "assumed": true, "iops": 1000.0, "bw_bytes": 4e6, "mean_us": 40.0, "waited_us": 30.0, "served_us": 10.0,
            "p50_us": 35.0, "p99_us": 90.0, "p999_us": 120.0, "p9999_us": 130.0, "violations": 0, "errors": 0,
            "hwqs": [0]
        });
        row.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(row).unwrap()
    }

    fn snapshot(tenants: Vec<TenantRow>) -> Snapshot {
        let drives = vec![DrivePolicy { drive: "fast".into(), policy: "lpns".into(), health: None }];
        Snapshot { drives, span_ms: 1000, tenants, pollers: Vec::new() }
    }

    fn broken(name: &str, by: &str) -> TenantRow {
        let mut row =
            tenant(name, serde_json::json!({"class": "guaranteed", "latency_target_us": 50.0, "kept": false}));
        let (culprit, why) = ("neighbour".into(), "it keeps 128 commands in flight".into());
        row.blame = Some(BlameRow { culprit, neighbour: Some(by.into()), why });
        row
    }

    fn screen(app: &mut App, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, app)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..height).map(line).collect()
    }

    fn press(app: &mut App, code: KeyCode) -> Does {
        app.key(KeyEvent::from(code))
    }

    #[test]
    fn a_broken_promise_is_first_and_names_who_breaks_it() {
        let mut app = App::new(None);
        app.take(
            snapshot(vec![tenant("batch", serde_json::json!({"bw_bytes": 3e9})), broken("db", "batch")]),
            Vec::new(),
        );
        let lines = screen(&mut app, 150, 40);
        assert!(lines[1].contains("0 kept, 1 BROKEN: db"), "{lines:#?}");
        assert!(lines[4].starts_with("db") && lines[4].contains("hurt by batch"), "{lines:#?}");
        assert!(lines[5].starts_with("batch") && lines[5].contains("hurts db"), "{lines:#?}");
        let text = lines.join("\n");
        assert!(text.contains("its promise fails by neighbour \"batch\": it keeps 128 commands"), "{text}");
        // The chosen one stays chosen while rows change places.
        press(&mut app, KeyCode::Down);
        assert_eq!(app.chosen().unwrap().name, "batch");
        press(&mut app, KeyCode::Char('s'));
        assert_eq!(app.tenants().map(|row| &row.name[..]).collect::<Vec<_>>(), ["batch", "db"]);
        assert_eq!(app.chosen().unwrap().name, "batch");
        let text = screen(&mut app, 150, 40).join("\n");
        assert!(text.contains("it breaks the promise of db"), "{text}");
    }

    #[test]
    fn any_screen_is_drawn_and_a_thousand_tenants_scroll() {
        let tenants = (0..1000).map(|at| tenant(&format!("t{at:04}"), serde_json::json!({}))).collect();
        let mut app = App::new(None);
        app.take(snapshot(tenants), Vec::new());
        for (width, height) in [(1, 1), (20, 5), (80, 24), (300, 100)] {
            screen(&mut app, width, height);
        }
        press(&mut app, KeyCode::End);
        let lines = screen(&mut app, 80, 24);
        assert!(lines.iter().any(|line| line.starts_with("t0999")), "{lines:#?}");
        let narrow = screen(&mut app, 30, 24);
        assert!(narrow[3].contains("p99") && !narrow[3].contains("MB/s"), "{narrow:#?}");
    }

    #[test]
    fn what_was_is_shown_while_the_daemon_is_away_and_while_it_is_held() {
        let mut app = App::new(None);
        app.take(snapshot(vec![tenant("db", serde_json::json!({}))]), Vec::new());
        app.lost("the daemon went away".into());
        let lines = screen(&mut app, 100, 10);
        assert!(lines[1].contains("the daemon went away") && lines[4].starts_with("db"), "{lines:#?}");
        press(&mut app, KeyCode::Char(' '));
        app.take(snapshot(vec![tenant("web", serde_json::json!({}))]), Vec::new());
        let lines = screen(&mut app, 100, 10);
        assert!(lines[4].starts_with("db") && lines[9].starts_with("HELD"), "{lines:#?}");
        press(&mut app, KeyCode::Char(' '));
        app.take(snapshot(vec![tenant("web", serde_json::json!({}))]), Vec::new());
        assert!(screen(&mut app, 100, 10)[4].starts_with("web"));
        assert_eq!(press(&mut app, KeyCode::Char('q')), Does::End);
    }

    /// A locked disk that looks like one that nobody uses.
    #[test]
    fn keys_are_shown_and_those_that_are_missing() {
        let mut app = App::new(None);
        let keys = [("db", "tenant", true), ("web", "host", false)];
        let row = |(name, owner, locked)| tenant(name, serde_json::json!({"encryption": owner, "locked": locked}));
        app.take(snapshot(keys.map(row).to_vec()), Vec::new());
        let lines = screen(&mut app, 150, 40);
        assert!(lines[4].starts_with("db") && lines[4].contains("locked"), "{lines:#?}");
        assert!(lines[5].starts_with("web") && lines[5].contains("host"), "{lines:#?}");
        let text = lines.join("\n");
        assert!(text.contains("encrypted with a key of the tenant, which is not here: no client can attach"), "{text}");
    }

    #[test]
    fn one_drives_tenants_are_shown_alone() {
        let mut app = App::new(Some("big".into()));
        let tenants = vec![tenant("db", serde_json::json!({})), tenant("web", serde_json::json!({"drive": "big"}))];
        app.take(snapshot(tenants), Vec::new());
        assert_eq!(app.tenants().map(|row| &row.name[..]).collect::<Vec<_>>(), ["web"]);
        app.take(snapshot(vec![]), Vec::new());
        assert_eq!((app.place(), press(&mut app, KeyCode::Down)), (None, Does::GoesOn));
        screen(&mut app, 80, 24);
    }

    #[test]
    fn events_are_shown_where_tenants_leave_room_the_newest_first() {
        let event = |number: u64, kind: &str| {
            let event = serde_json::json!({"number": number, "at_unix_ms": 0, "kind": kind, "tenant": "db"});
            serde_json::from_value(event).unwrap()
        };
        let mut app = App::new(None);
        app.take(snapshot(vec![tenant("db", serde_json::json!({}))]), vec![event(1, "created"), event(2, "attached")]);
        app.take(snapshot(vec![tenant("db", serde_json::json!({}))]), vec![event(3, "promise_broken")]);
        let lines = screen(&mut app, 100, 9);
        assert!(lines[6].contains("promise broken") && lines[7].contains("attached"), "{lines:#?}");
        assert!(!screen(&mut app, 100, 6).join("\n").contains("1970"));
    }
}
