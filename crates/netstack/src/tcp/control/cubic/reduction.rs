//! Proportional rate reduction: in recovery something is sent for what arrives, in the
//! measure of the new threshold to the old window (RFC 6937).

#[derive(Debug)]
pub struct Reduction {
    delivered: u64,
    out: u64,
    /// What was on its way at the beginning.
    flight: u64,
}

impl Reduction {
    pub fn new(flight: u32) -> Self {
        Self { delivered: 0, out: 0, flight: flight.into() }
    }

    /// Something was sent.
    pub fn note_out(&mut self, bytes: u32) {
        self.out += u64::from(bytes);
    }

    /// How much may be sent now.
    pub fn allow(
        &mut self,
        delivered: u32,
        (flying, threshold): (u32, u32),
        safe: bool,
        mss: u32,
    ) -> u32 {
        self.delivered += u64::from(delivered);
        let allowed = if flying > threshold {
            let due = (self.delivered * u64::from(threshold)).div_ceil(self.flight);
            due.saturating_sub(self.out)
        } else {
            let owed = self.delivered.saturating_sub(self.out).max(delivered.into());
            let owed = if safe { owed + u64::from(mss) } else { owed };
            owed.min(u64::from(threshold - flying))
        };
        // The first loss is sent again whatever the measure says.
        let least = if self.out == 0 { mss } else { 0 };
        u32::try_from(allowed).unwrap_or(u32::MAX / 4).max(least)
    }
}
