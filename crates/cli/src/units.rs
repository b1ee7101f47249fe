//! Formats quantities for people.

use std::time::Duration;

/// A time in its units, from days to seconds: `1 h 5 s`.
pub(crate) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let parts = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    let mut rest = seconds;
    let words: Vec<String> = parts
        .iter()
        .filter_map(|(size, unit)| {
            let count = rest / size;
            rest %= size;
            (count > 0).then(|| format!("{count} {unit}"))
        })
        .collect();
    if words.is_empty() { "0 s".into() } else { words.join(" ") }
}

/// A number of bytes: `2.00 KiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    let mut size = bytes as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if size < 1024.0 {
            break;
        }
        size /= 1024.0;
        unit = next;
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{size:.2} {unit}") }
}

/// A rate in bits a second: `2.00 Mbit/s`.
pub(crate) fn bits(rate: f64) -> String {
    let mut rate = rate;
    let mut unit = "bit/s";
    for next in ["kbit/s", "Mbit/s", "Gbit/s"] {
        if rate < 1000.0 {
            break;
        }
        rate /= 1000.0;
        unit = next;
    }
    if unit == "bit/s" { format!("{rate:.0} {unit}") } else { format!("{rate:.2} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_has_all_its_units() {
        let texts = [0, 61, 3_600, 90_061].map(|seconds| duration(Duration::from_secs(seconds)));
        assert_eq!(texts, ["0 s", "1 min 1 s", "1 h", "1 d 1 h 1 min 1 s"]);
    }

    #[test]
    fn size_and_rate_use_their_largest_unit() {
        let texts = [0, 1023, 2048, 5 << 40].map(bytes);
        assert_eq!(texts, ["0 B", "1023 B", "2.00 KiB", "5.00 TiB"]);
        let texts = [0.0, 999.0, 1e6, 7.25e12].map(bits);
        assert_eq!(texts, ["0 bit/s", "999 bit/s", "1.00 Mbit/s", "7250.00 Gbit/s"]);
    }
}
