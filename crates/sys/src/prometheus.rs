//! The text format of Prometheus
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>).

use std::fmt::{Display, Write};

/// Metrics as text.
pub struct MetricsText {
    prefix: &'static str,
    /// The labels of all samples.
    labels: Vec<(String, String)>,
    text: String,
}

impl MetricsText {
    /// Creates an empty text. `prefix` is the start of all names, and `labels` are in all samples.
    pub fn new(prefix: &'static str, labels: &[(&str, &str)]) -> Self {
        let labels = labels.iter().map(|(label, of)| ((*label).to_owned(), (*of).to_owned()));
        Self { prefix, labels: labels.collect(), text: String::new() }
    }

    /// Writes the help and the kind of a metric.
    pub fn head(&mut self, name: &str, kind: &str, help: &str) {
        let prefix = self.prefix;
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "# HELP {prefix}{name} {help}\n# TYPE {prefix}{name} {kind}");
    }

    /// Writes a sample. `labels` follow those of all samples.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let _ = write!(self.text, "{}{name}", self.prefix);
        let common = self.labels.iter().map(|(label, of)| (label.as_str(), of.as_str()));
        let mut separator = '{';
        for (label, of) in common.chain(labels.iter().copied()) {
            let _ = write!(self.text, "{separator}{label}=\"{}\"", escaped(of));
            separator = ',';
        }
        let _ = writeln!(self.text, "{} {value}", if separator == ',' { "}" } else { "" });
    }

    /// Writes the samples of a histogram. `buckets` are the upper bounds with the cumulative counts.
    pub fn histogram(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        buckets: impl IntoIterator<Item = (f64, u64)>,
        (count, sum): (u64, f64),
    ) {
        let bucket = format!("{name}_bucket");
        let mut sample = |bound: &str, count| {
            self.sample(&bucket, &[labels, &[("le", bound)]].concat(), count);
        };
        for (bound, count) in buckets {
            sample(&bound.to_string(), count);
        }
        sample("+Inf", count);
        self.sample(&format!("{name}_sum"), labels, sum);
        self.sample(&format!("{name}_count"), labels, count);
    }

    /// The written text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The written text, without a copy.
    pub fn into_string(self) -> String {
        self.text
    }
}

/// Escapes the value of a label. The name of an interface may contain a quotation mark.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_has_the_common_labels_first_and_escaped_values() {
        let mut text = MetricsText::new("a_", &[("interface", "w\"g\\0")]);
        text.sample("b", &[], 1);
        text.sample("c", &[("reason", "x\ny")], 2.5);
        let expected = "a_b{interface=\"w\\\"g\\\\0\"} 1\n\
                        a_c{interface=\"w\\\"g\\\\0\",reason=\"x\\ny\"} 2.5\n";
        assert_eq!(text.as_str(), expected);
    }

    #[test]
    fn sample_without_labels_is_written_without_braces() {
        let mut text = MetricsText::new("a_", &[]);
        text.head("b", "gauge", "Help.");
        text.sample("b", &[], 1);
        text.sample("b", &[("k", "v")], 2);
        let expected = "# HELP a_b Help.\n# TYPE a_b gauge\na_b 1\na_b{k=\"v\"} 2\n";
        assert_eq!(text.as_str(), expected);
    }
}
