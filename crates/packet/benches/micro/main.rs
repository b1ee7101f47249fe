//! Measures the operations on packets: `cargo bench -p linerate-packet [-- PART...]`.

mod checksum;
mod coalesce;
mod filter;
mod measure;
mod packets;
mod segment;

fn main() {
    measure::run(&[
        ("checksum", checksum::sum),
        ("checksum-copy", checksum::copy),
        ("segment", segment::segment),
        ("coalesce", coalesce::coalesce),
        ("filter", filter::filter),
    ]);
}
