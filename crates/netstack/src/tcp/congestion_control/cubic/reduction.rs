//! Proportional rate reduction: in recovery, data is sent in proportion to delivered data, by the
//! ratio of the new threshold to the old window (RFC 6937).

#[derive(Debug)]
pub(super) struct Reduction {
    delivered: u64,
    out: u64,
    /// Bytes in flight at the start.
    flight: u64,
}

impl Reduction {
    pub(super) fn new(flight: u32) -> Self {
        Self { delivered: 0, out: 0, flight: flight.into() }
    }

    /// Records sent data.
    pub(super) fn note_out(&mut self, bytes: u32) {
        self.out += u64::from(bytes);
    }

    /// Bytes that may be sent now.
    pub(super) fn allow(
        &mut self,
        delivered: u32,
        (in_flight, threshold): (u32, u32),
        safe: bool,
        mss: u32,
    ) -> u32 {
        self.delivered += u64::from(delivered);
        let allowed = if in_flight > threshold {
            let due = (self.delivered * u64::from(threshold)).div_ceil(self.flight);
            due.saturating_sub(self.out)
        } else {
            let owed = self.delivered.saturating_sub(self.out).max(delivered.into());
            let owed = if safe { owed + u64::from(mss) } else { owed };
            owed.min(u64::from(threshold - in_flight))
        };
        // The first lost segment is always retransmitted.
        let least = if self.out == 0 { mss } else { 0 };
        u32::try_from(allowed).unwrap_or(u32::MAX / 4).max(least)
    }
}
