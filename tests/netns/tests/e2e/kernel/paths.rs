//! Path MTU probes (docs/decisions/0006), which the kernel does not support.

use std::thread;
use std::time::Duration;

use netns::{Family, INTERFACE, Introduction, Pace, ShowOutput, Stream, ping};

use super::rig::{Rig, Tunnel, socket};

/// Limit of probes to a peer that does not answer (`wg::PROBE_LOST`).
const PROBES: u64 = 3;

#[test]
#[ignore = "make kernel-test"]
fn path_mtu_probes_cause_three_frame_errors_in_the_kernel_and_no_loss() {
    let rig = Rig::boot();
    for outer in Family::ALL {
        let introduction =
            Introduction { outer: Some(outer), left_only: true, ..Introduction::default() };
        let tunnel = Tunnel::start(&rig, introduction);
        tunnel.opens(Family::V4, false);
        let pace = Pace { piece: 20_000, rest: Duration::from_millis(50), bytes: None };
        let stream = Stream::start(&rig.left, &rig.right, socket("10.4.0.2", 7000), pace);
        thread::sleep(Duration::from_secs(8));
        let request = tunnel.kernel_counts("rx_frame_errors");
        assert_eq!(request, PROBES, "outer {outer}");
        thread::sleep(Duration::from_secs(4));
        let carried = stream.finish();
        assert_eq!(carried.received, carried.sent, "outer {outer}");

        // Probing stops, no path MTU is assumed, and packets of full length pass.
        let whole = ping(&rig.left, "-c 20 -i 0.05 -W 5 -M do -s 1392 10.4.0.2");
        assert!(whole.is_complete(), "outer {outer}: {}", whole.text);
        tunnel.carries_everything();
        for (counter, expected) in
            [("rx_frame_errors", PROBES), ("rx_errors", PROBES), ("rx_length_errors", 0)]
        {
            assert_eq!(tunnel.kernel_counts(counter), expected, "outer {outer}: {counter}");
        }
        let shown = ShowOutput::of(&rig.left, INTERFACE);
        assert!(shown.path_mtus.is_empty(), "{shown:?}");
    }
}
