//! The report as a whole, on figures made up to be awkward.

use super::*;
use crate::paper::{Paper, derived, doubtful, printed};

const HOSTILE: &str = "<b>\"K2\" & 'friends'</b>\u{1}";

fn lines() -> Figure {
    let mut figure = Figure::new(Paper::Lpns, "fig7a", "One promise beside one noisy VM");
    figure.shows = "VM1's mean latency as VM2's load grows.".into();
    figure.goal = "within 15 %".into();
    figure.assume("units are hashed & few");
    for (i, load) in ["n1d1", "n2d1", "n4d16"].into_iter().enumerate() {
        let at = |factor: f64| 12.0 * (i + 1) as f64 * factor;
        figure.push(Row::new("LPNS", load, "mean (µs)", at(1.0)).against(printed(at(1.1)), 0.15));
        figure.push(Row::new("SPDK", load, "mean (µs)", at(9.0)).against(doubtful(at(3.0)), 0.15));
        figure.push(Row::new(HOSTILE, load, "mean (µs)", if i == 1 { f64::NAN } else { at(2.0) }));
    }
    figure.demand("LPNS ≤ 50 µs", true, "12 to 36 µs");
    figure.demand("SPDK < LPNS", false, HOSTILE);
    let rows = vec![vec!["LPNS".to_owned(), "a | b".to_owned()], vec![HOSTILE.to_owned(), "–".to_owned()]];
    figure.tables.push(Table { rows, ..Table::new("In short", &["system", "seen"]) });
    figure.plots.push(Plot::lines("mean (µs)", "VM2's load").log_y().mark(50.0, "promised"));
    figure.plots.push(Plot::lines("nothing has this", "VM2's load"));
    figure.reasons.push("SPDK < LPNS only if its reactor were free.".into());
    figure
}

fn others() -> Figure {
    let mut figure = Figure::new(Paper::Qos, "fig8", "Ratios");
    for (i, omega) in [10u32, 50, 190, 400].into_iter().enumerate() {
        figure.push(Row::new("LPNS", omega, "loss (fraction)", 0.4 - 0.2 * i as f64).beside(derived(0.2)));
        for (part, value) in [" p1", " p25", " p50", " p75", " p99"].into_iter().zip([8.0, 11.0, 12.5, 15.0, 60.0]) {
            figure.push(Row::new("K2", omega, &format!("latency (µs){part}"), value * (i + 1) as f64));
        }
    }
    figure.plots.push(Plot::bars("loss (fraction)", "Ω"));
    figure.plots.push(Plot { x_axis: Axis::Log, ..Plot::lines("loss (fraction)", "Ω") });
    figure.plots.push(Plot { kind: Kind::Boxes, ..Plot::lines("latency (µs)", "Ω").log_y() });
    figure
}

fn report() -> Report {
    let uncovered = vec![Uncovered {
        paper: Paper::Vbmq,
        figure: "Fig. 7".into(),
        why: "it needs <more>".into(),
        printed: vec!["3M & more".into()],
    }];
    Report { seed: 7, quick: true, figures: vec![lines(), others()], uncovered }
}

#[test]
fn the_page_is_well_formed_and_says_what_the_figures_say() {
    let html = report().html();
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let page = roxmltree::Document::parse_with_options(&html, options).unwrap();
    let count = |name: &str| page.descendants().filter(|node| node.has_tag_name(name)).count();
    // The plot of a metric that no row has is left out.
    assert_eq!((count("svg"), count("figure"), count("script"), count("b")), (4, 4, 0, 0));
    let text: String = page.descendants().filter_map(|node| node.text()).collect();
    assert!(text.contains("<b>\"K2\" & 'friends'</b>\u{fffd}"));
    for word in [
        "4 of 6",
        "our own demands",
        "SPDK < LPNS only if its reactor were free.",
        "units are hashed & few",
        "quick run",
    ] {
        assert!(text.contains(word), "{word}");
    }
    let ids: Vec<&str> = page.descendants().filter_map(|node| node.attribute("id")).collect();
    let links = page.descendants().filter_map(|node| node.attribute("href")?.strip_prefix('#'));
    assert_eq!(links.collect::<Vec<_>>(), ids);
}

#[test]
fn a_table_is_one_in_both_forms() {
    let report = report();
    assert!(report.html().contains("<tr><td>LPNS</td><td>a | b</td></tr>"));
    let text = report.markdown();
    assert!(text.contains("\nIn short:\n\n| system | seen |\n| --- | --- |\n| LPNS | a \\| b |\n"), "{text}");
}

#[test]
fn every_place_in_a_plot_is_a_number_inside_it() {
    let html = report().html();
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let page = roxmltree::Document::parse_with_options(&html, options).unwrap();
    let mut checked = 0;
    for node in page.descendants() {
        for name in ["x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "width", "height"] {
            let Some(text) = node.attribute(name) else { continue };
            let value: f64 = text.parse().unwrap();
            assert!((0.0..=720.0).contains(&value), "{name}={text}");
            checked += 1;
        }
        for point in node.attribute("points").into_iter().flat_map(str::split_whitespace) {
            assert!(point.split(',').all(|part| (0.0..=720.0).contains(&part.parse::<f64>().unwrap())), "{point}");
            checked += 1;
        }
    }
    assert!(checked > 300, "{checked}");
}

#[test]
fn a_printed_value_is_a_hollow_marker_beside_ours() {
    let drawing = lines().plots[0].draw(&lines().rows).unwrap();
    assert_eq!(drawing.series.len(), 3);
    assert!(drawing.has_printed);
    assert_eq!(drawing.svg.matches("class=\"printed").count(), 6);
    // What could not be measured has no dot.
    assert_eq!(drawing.svg.matches("class=\"dot").count(), 8);
}

#[test]
fn json_and_csv_hold_every_row() {
    let json: serde_json::Value = serde_json::from_str(&report().json()).unwrap();
    assert_eq!(json["schema_version"], 1);
    assert_eq!((json["seed"].as_u64(), json["quick"].as_bool()), (Some(7), Some(true)));
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 9 + 24);
    assert_eq!(rows[0]["verdict"], "within");
    assert!(rows[5]["ours"].is_null());
    assert_eq!(json["figures"][0]["criteria"][1]["met"], false);
    assert_eq!(json["figures"][0]["assumptions"][0], "units are hashed & few");
    assert_eq!(json["uncovered"][0]["paper"], "vbmq");

    let csv = report().csv();
    assert_eq!(csv.lines().count(), 1 + 9 + 24);
    assert_eq!(csv.lines().nth(1).unwrap(), "lpns,fig7a,LPNS,n1d1,mean (µs),13.2,12,-0.0909091,within,our own demands");
    assert!(csv.contains("lpns,fig7a,\"<b>\"\"K2\"\" & 'friends'</b>\u{1}\",n2d1,mean (µs),,,,off,our own demands"));
}

#[test]
fn the_same_report_is_the_same_bytes() {
    let (one, two) = (report(), report());
    assert_eq!((one.html(), one.json(), one.csv()), (two.html(), two.json(), two.csv()));
}

#[test]
fn files_are_replaced_whole_and_a_bad_directory_is_told_early() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("a/b");
    for _ in 0..2 {
        let files = Output::prepare(&out).unwrap().write(&report()).unwrap();
        assert_eq!(std::fs::read_to_string(&files[2]).unwrap(), report().json());
    }
    let mut names: Vec<_> =
        std::fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["report.csv", "report.html", "report.json", "report.md"]);

    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = Output::prepare(&file.join("x")).unwrap_err().to_string();
    assert!(error.starts_with("can't write the report to ") && error.contains("file/x: "), "{error}");
}
