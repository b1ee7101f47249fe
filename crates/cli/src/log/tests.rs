use std::{
    io,
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};
use tracing::subscriber::with_default;

use super::*;

/// A sink that stores the output.
#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Logs at a fixed time.
fn lines(format: Format, log: impl FnOnce()) -> Vec<String> {
    logged(format, || Duration::ZERO, log)
}

fn logged(format: Format, clock: fn() -> Duration, log: impl FnOnce()) -> Vec<String> {
    let sink = Sink::default();
    let writer = sink.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .event_format(Lines { format, limits: Limits::default(), clock });
    with_default(subscriber.finish(), log);
    let bytes = sink.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn each_call_site_has_its_own_limit_except_process_modules() {
    let logged_lines = lines(Format::Text, || {
        for number in 0..100 {
            tracing::warn!(number, "a client is wrong");
            tracing::warn!(target: "host", "a line of the file");
            tracing::warn!(target: "host::undo_log", "not removed");
            tracing::warn!(target: "hosting", "another module");
        }
        tracing::error!("another place");
    });
    let count = |what: &str| logged_lines.iter().filter(|line| line.contains(what)).count();
    assert_eq!(count("a client is wrong"), 10);
    assert_eq!(count("another module"), 10);
    assert_eq!(count("a line of the file"), 100);
    assert_eq!(count("not removed"), 100);
    assert_eq!(count("another place"), 1);
    assert!(logged_lines[0].ends_with(" WARN a client is wrong number=0"), "{}", logged_lines[0]);
}

#[test]
fn the_number_of_suppressed_messages_is_in_the_next_one() {
    thread_local! {
        static NOW: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }
    for format in [Format::Text, Format::Json] {
        NOW.set(0);
        let logged_lines = logged(
            format,
            || Duration::from_secs(NOW.get()),
            || {
                for number in 0..40 {
                    NOW.set(number / 30 * 6);
                    tracing::warn!("again");
                }
            },
        );
        assert_eq!(logged_lines.len(), 11);
        match format {
            Format::Text => {
                assert!(
                    logged_lines[10].ends_with("again (20 similar messages were suppressed)"),
                    "{logged_lines:?}"
                );
            }
            Format::Json => {
                let untold = logged_lines.iter().map(|line| {
                    let line: Value = serde_json::from_str(line).unwrap();
                    line["untold"].as_u64().unwrap()
                });
                assert_eq!(untold.collect::<Vec<_>>()[9..], [0, 20]);
            }
        }
    }
}

#[test]
fn json_event_is_one_line_with_typed_fields() {
    let logged_lines = lines(Format::Json, || {
        let error = io::Error::other("two\nlines, \"quoted\"");
        tracing::error!(%error, port = 51820_u16, wanted = true, at = -1, "it\tfailed");
        tracing::info!("plain {}", 7);
    });
    let [first, second] = &logged_lines[..] else { panic!("{logged_lines:?}") };
    let mut first: Value = serde_json::from_str(first).unwrap();
    let time = first["time"].take();
    let time = time.as_str().unwrap();
    assert!(time.len() > 20 && time.contains('T') && time.ends_with('Z'), "{time}");
    assert_eq!(
        first,
        json!({
            "time": null,
            "level": "error",
            "target": "cli::log::tests",
            "message": "it\tfailed",
            "fields": { "error": "two\nlines, \"quoted\"", "port": 51820, "wanted": true, "at": -1 },
            "untold": 0,
        })
    );
    let second: Value = serde_json::from_str(second).unwrap();
    assert_eq!((&second["message"], &second["level"]), (&json!("plain 7"), &json!("info")));
}

#[test]
fn fatal_error_is_one_line_of_the_log_format() {
    let error = anyhow::anyhow!("two\nlines").context("wg0");
    assert_eq!(Log::default().failure(&error), "linerate: wg0: two\nlines");
    let json = Log::of(LogStyle { json: true, background: true });
    assert_eq!(json.style(true), LogStyle { json: true, background: true });
    let failure = json.failure(&error);
    assert!(!failure.contains('\n'), "{failure}");
    let failure: Value = serde_json::from_str(&failure).unwrap();
    assert_eq!(
        (&failure["message"], &failure["level"]),
        (&json!("wg0: two\nlines"), &json!("error"))
    );
    let logged_lines = lines(Format::Json, || tracing::error!("another"));
    let other: Value = serde_json::from_str(&logged_lines[0]).unwrap();
    let keys = |line: &Value| line.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&failure), keys(&other));
}
