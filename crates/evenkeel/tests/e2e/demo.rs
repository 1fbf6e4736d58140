//! `evenkeel demo --json`: four phases, as programs read them.

use crate::harness::{errors, run};
use crate::json::{self, Prints};

#[test]
fn the_demo_tells_four_phases() {
    let output = run(&["demo", "--json", "--seconds", "1"]);
    assert!(output.status.success(), "{}", errors(&output));
    let report = json::read(Prints::Items, str::from_utf8(&output.stdout).unwrap());
    let phases = report["items"].as_array().unwrap();
    let expected = [
        ("alone", "passthrough", 1),
        ("contended", "passthrough", 4),
        ("contended", "lpns", 4),
        ("contended", "evenkeel", 4),
    ];
    assert_eq!(phases.len(), expected.len());
    for (phase, (scenario, policy, tenants)) in phases.iter().zip(expected) {
        assert_eq!((phase["scenario"].as_str(), phase["policy"].as_str()), (Some(scenario), Some(policy)));
        let rows = phase["tenants"].as_array().unwrap();
        assert_eq!(rows.len(), tenants, "{phase}");
        assert_eq!(rows[0]["name"], "db");
        for row in rows {
            let guaranteed = row["name"] == "db";
            assert_eq!(row["class"], if guaranteed { "guaranteed" } else { "best-effort" });
            for field in ["iops", "mean_us", "p50_us", "p99_us", "p999_us"] {
                assert!(row[field].as_f64().is_some_and(|value| value > 0.0), "{field} in {row}");
            }
            assert_eq!(row["latency_target_us"].is_number(), guaranteed, "{row}");
            assert_eq!(row["violations"].is_u64(), guaranteed, "{row}");
            let kept = row["latency_target_us"].as_f64().map(|target_us| row["p99_us"].as_f64().unwrap() <= target_us);
            assert_eq!(row["kept"].as_bool(), kept, "{row}");
        }
    }
}
