//! Charts of the page: bars as HTML, which fit any width, and curves as SVG.

use crate::comparison::Spread;
use netns::escape;

/// A bar with its name, spread and figure.
pub(super) struct Bar<'a> {
    /// Index of the contender, which selects the colour.
    pub contender: usize,
    /// Its name.
    pub name: &'a str,
    /// The length.
    pub spread: Spread,
    /// Ends of its line, if it has one.
    pub range: Option<(f64, f64)>,
    /// Text of the figure.
    pub text: String,
}

/// A line ends at this multiple of the largest turn.
const BEYOND: f64 = 1.5;

/// Bars on one scale from zero to the largest turn or the longest line.
pub(super) fn bars(bars: &[Bar<'_>]) -> String {
    let most = bars.iter().map(|bar| bar.spread.most).filter(|most| most.is_finite());
    let most = most.fold(f64::MIN_POSITIVE, f64::max);
    let ends = bars.iter().filter_map(|bar| bar.range).map(|(_, high)| high.min(BEYOND * most));
    let most = ends.fold(most, f64::max);
    let row = |bar: &Bar<'_>| {
        let percent =
            |value: f64| if value.is_finite() { 100.0 * (value / most).min(1.0) } else { 0.0 };
        let median = percent(bar.spread.median);
        let line = bar.range.map(|(low, high)| {
            let (left, width) = (percent(low), percent(high) - percent(low));
            format!("<div class=spread style=\"left:{left:.2}%;width:{width:.2}%\"></div>")
        });
        format!(
            "<div class=row><span class=name>{}</span><span class=value>{}</span>\
             <div class=track><div class=\"bar c{}\" style=\"width:{median:.2}%\"></div>\
             {}</div></div>\n",
            escape(bar.name),
            escape(&bar.text),
            bar.contender,
            line.unwrap_or_default(),
        )
    };
    bars.iter().map(row).collect()
}

/// Size of the picture, and the margins for its scales.
const WIDTH: f64 = 440.0;
const HEIGHT: f64 = 280.0;
const LEFT: f64 = 60.0;
const BOTTOM: f64 = 34.0;
const TOP: f64 = 8.0;
const RIGHT: f64 = 24.0;

/// Percentiles on the horizontal scale.
const PERCENTILES: [(f64, &str); 5] =
    [(0.0, "0"), (0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %")];

/// Times by percentile, both in powers of ten. Each curve is a contender's index and its sorted
/// times.
pub(super) fn latencies(curves: &[(usize, Vec<f64>)]) -> String {
    let all = || curves.iter().flat_map(|(_, times)| times).copied().filter(|time| *time > 0.0);
    let least = all().fold(f64::INFINITY, f64::min);
    if !least.is_finite() {
        return String::new();
    }
    let low = least.log10().floor();
    let high = all().fold(least, f64::max).log10().ceil().max(low + 1.0);
    let x = |part: f64| {
        // -log10 of the rest: 90 % is 1, 99.9 % is 3.
        LEFT + (WIDTH - LEFT - RIGHT) * (-(1.0 - part).log10() / 3.0).min(1.0)
    };
    let y = |time: f64| {
        let height = HEIGHT - TOP - BOTTOM;
        TOP + height * (1.0 - (time.log10().max(low) - low) / (high - low))
    };
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=img>\n");
    for (part, name) in PERCENTILES {
        let (x, end, text) = (x(part), HEIGHT - BOTTOM, HEIGHT - 12.0);
        svg += &format!("<path class=grid d=\"M{x:.1} {TOP}V{end}\"/>");
        svg += &format!("<text x={x:.1} y={text} text-anchor=middle>{name}</text>\n");
    }
    for power in (low as i32)..=(high as i32) {
        let time = 10f64.powi(power);
        let (y, end, text) = (y(time), WIDTH - RIGHT, LEFT - 6.0);
        svg += &format!("<path class=grid d=\"M{LEFT} {y:.1}H{end}\"/>");
        let label = y + 4.0;
        svg += &format!("<text x={text} y={label:.1} text-anchor=end>{time} ms</text>\n");
    }
    for (contender, times) in curves.iter().filter(|(_, times)| !times.is_empty()) {
        let point = |(at, time): (usize, &f64)| {
            format!("{:.1} {:.1}", x(at as f64 / times.len() as f64), y(*time))
        };
        let points: Vec<String> = times.iter().enumerate().map(point).collect();
        svg += &format!("<path class=\"line s{contender}\" d=\"M{}\"/>\n", points.join("L"));
    }
    svg + "</svg>"
}

#[cfg(test)]
mod tests {
    use super::{Bar, bars, latencies};
    use crate::comparison::Spread;

    #[test]
    fn bars_are_to_scale_with_the_longest_turn() {
        let bar = |contender, values: &[f64]| Bar {
            contender,
            name: "<x>",
            spread: Spread::of(values.to_vec()),
            range: (values.len() > 1).then_some((values[0], values[values.len() - 1])),
            text: "1".to_owned(),
        };
        let html = bars(&[bar(0, &[4.0, 5.0, 10.0]), bar(1, &[f64::NAN])]);
        assert!(html.contains("c0\" style=\"width:50.00%"), "{html}");
        assert!(html.contains("left:40.00%;width:60.00%"), "{html}");
        assert!(html.contains("c1\" style=\"width:0.00%"), "{html}");
        assert!(html.contains("&lt;x&gt;"));
        assert_eq!(html.matches("class=spread").count(), 1);
    }

    #[test]
    fn a_line_that_goes_far_beyond_every_turn_is_cut_short() {
        let spread = Spread::of(vec![4.0, 5.0, 10.0]);
        let (name, text) = ("x", String::new());
        let html = bars(&[Bar { contender: 0, name, spread, range: Some((3.0, 99.0)), text }]);
        // The scale ends at 15.
        assert!(html.contains("c0\" style=\"width:33.33%"), "{html}");
        assert!(html.contains("left:20.00%;width:80.00%"), "{html}");
    }

    #[test]
    fn a_curve_goes_from_the_shortest_to_the_longest() {
        let svg = latencies(&[(0, vec![0.1, 1.0, 10.0]), (1, vec![])]);
        // The scale is from 0.1 to 10 ms, from 246 up to 8.
        assert!(svg.contains("M60.0 246.0L"), "{svg}");
        assert!(svg.contains(" 127.0L"), "{svg}");
        assert!(svg.contains(" 8.0\"/>"), "{svg}");
        // Each power of ten has its own line.
        for line in ["M60 246.0H", "M60 127.0H", "M60 8.0H"] {
            assert_eq!(svg.matches(line).count(), 1, "{line}: {svg}");
        }
        assert_eq!(svg.matches("class=\"line").count(), 1);
        assert_eq!(latencies(&[(0, vec![])]), "");
    }
}
