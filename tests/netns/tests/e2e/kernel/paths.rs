//! Questions about the path (docs/decisions/0006), which the kernel does not know.

use std::thread;
use std::time::Duration;

use netns::{Family, INTERFACE, Meeting, Pace, Shown, Stream, ping};

use super::rig::{Rig, Tunnel, socket};

/// Maximum number of unanswered probes to a peer (`MAX_PROBES` of `wg`).
const QUESTIONS: u64 = 3;

#[test]
#[ignore = "make kernel-test"]
fn questions_about_the_path_are_three_frame_errors_to_the_kernel_and_harm_nothing() {
    let rig = Rig::boot();
    for outer in Family::ALL {
        let meeting = Meeting { outer: Some(outer), left_only: true, ..Meeting::default() };
        let tunnel = Tunnel::start(&rig, meeting);
        tunnel.opens(Family::V4, false);
        let pace = Pace { piece: 20_000, rest: Duration::from_millis(50), bytes: None };
        let stream = Stream::start(&rig.left, &rig.right, socket("10.4.0.2", 7000), pace);
        thread::sleep(Duration::from_secs(8));
        let asked = tunnel.kernel_counts("rx_frame_errors");
        assert_eq!(asked, QUESTIONS, "outer {outer}");
        thread::sleep(Duration::from_secs(4));
        let carried = stream.finish();
        assert_eq!(carried.received, carried.sent, "outer {outer}");

        // No more are asked, of the path nothing is believed, and packets of full length pass.
        let whole = ping(&rig.left, "-c 20 -i 0.05 -W 5 -M do -s 1392 10.4.0.2");
        assert!(whole.is_complete(), "outer {outer}: {}", whole.text);
        tunnel.carries_everything();
        for (counter, expected) in
            [("rx_frame_errors", QUESTIONS), ("rx_errors", QUESTIONS), ("rx_length_errors", 0)]
        {
            assert_eq!(tunnel.kernel_counts(counter), expected, "outer {outer}: {counter}");
        }
        let shown = Shown::of(&rig.left, INTERFACE);
        assert!(shown.path_mtus.is_empty(), "{shown:?}");
    }
}
