//! VXLAN inside the tunnel, as in overlays over a VPN, without UDP checksums (RFC 7348 section 5).

use netns::{Family, OVERLAY, overlay};

use super::Turn;
use super::topology::Ends;
use crate::measure::VXLAN;

impl Turn<'_> {
    pub(super) fn vxlan(&mut self) {
        let Ends { left, right, .. } = &self.ends;
        let addresses = [left, right].map(|end| end.inner.of(Family::V4));
        overlay([&left.host, &right.host], addresses, "noudpcsum");
        self.target = OVERLAY[1].to_owned();
        let rate = self.stream("");
        self.note(&VXLAN, rate.gbps());
    }
}
