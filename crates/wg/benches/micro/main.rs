//! Benchmarks of the protocol's steps: `cargo bench -p linerate-wg [-- PART...]`.

mod allowed_ips;
mod handshake;
#[expect(dead_code, reason = "the benches of the packet crate use the rest")]
#[path = "../../../packet/benches/micro/measure.rs"]
mod measure;
mod replay;

fn main() {
    measure::run(&[
        ("allowed-ips", allowed_ips::lookup),
        ("replay", replay::accept),
        ("handshake", handshake::handshake),
    ]);
}
