//! Features and driver of a network device, like `ethtool -k` and `-i`, by the `SIOCETHTOOL` ioctl
//! (linux/ethtool.h). Devices are those of the thread's network namespace.
#![expect(unsafe_code, reason = "the SIOCETHTOOL ioctl")]

use std::{collections::BTreeMap, ffi::c_char, io, os::fd::AsRawFd};

use nix::{
    errno::Errno,
    sys::socket::{AddressFamily, SockFlag, SockType, socket},
};

// linux/ethtool.h.
const GDRVINFO: u32 = 0x03;
const GSTRINGS: u32 = 0x1b;
const GSSET_INFO: u32 = 0x37;
const GFEATURES: u32 = 0x3a;
const SFEATURES: u32 = 0x3b;
/// `ETH_SS_FEATURES`, the set of feature names.
const FEATURE_NAMES: u32 = 4;
/// `ETH_GSTRING_LEN`, the length of a name in bytes.
const NAME_LEN: usize = 32;
/// 32-bit words of `struct ethtool_drvinfo`.
const DRVINFO_WORDS: usize = 49;
/// 32-bit words of the header of a feature request.
const HEADER: usize = 2;
/// Features per block.
const BLOCK: usize = u32::BITS as usize;

/// The feature that coalesces forwarded UDP (Linux 5.12).
pub const UDP_FORWARDING: &str = "rx-udp-gro-forwarding";

/// One feature of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Feature {
    /// Whether it is enabled.
    pub active: bool,
    /// Whether it can be changed.
    pub changeable: bool,
}

impl Feature {
    /// Whether it is disabled and can be enabled.
    pub fn is_switched_off(self) -> bool {
        self.changeable && !self.active
    }
}

/// A device's driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Driver {
    /// The driver's name: `virtio_net`, `veth`.
    pub name: String,
    /// The firmware version, if it has one.
    pub firmware: String,
}

/// The driver of a device.
///
/// # Errors
/// `EOPNOTSUPP` if the driver does not implement this, `ENODEV` if the device does not exist.
pub fn driver(device: &str) -> io::Result<Driver> {
    let mut words = vec![0; DRVINFO_WORDS];
    words[0] = GDRVINFO;
    call(device, &mut words)?;
    let bytes = bytes_of(&words[1..]);
    // Driver name, driver version, firmware version.
    let text = |index: usize| text_of(&bytes[index * NAME_LEN..][..NAME_LEN]);
    Ok(Driver { name: text(0), firmware: text(2) })
}

/// All features of a device by their kernel names, which `ethtool -K` accepts: `rx-gro`,
/// `tx-udp-segmentation`.
///
/// # Errors
/// `ENODEV` if the device does not exist.
pub fn features(device: &str) -> io::Result<BTreeMap<String, Feature>> {
    let names = names(device)?;
    let mut words = vec![0; HEADER + 4 * names.len().div_ceil(BLOCK)];
    words[0] = GFEATURES;
    words[1] = names.len().div_ceil(BLOCK) as u32;
    call(device, &mut words)?;
    let feature = |index: usize| {
        // Available, requested, active, never changed.
        let block = &words[HEADER + 4 * (index / BLOCK)..][..4];
        let has = |word: usize| block[word] >> (index % BLOCK) & 1 == 1;
        Feature { active: has(2), changeable: has(0) && !has(3) }
    };
    let features = names.into_iter().enumerate().map(|(index, name)| (name, feature(index)));
    Ok(features.filter(|(name, _)| !name.is_empty()).collect())
}

/// Enables or disables a feature of a device.
///
/// # Errors
/// `EOPNOTSUPP` if the device did not change it, `EPERM` without `CAP_NET_ADMIN`.
pub fn set_feature(device: &str, feature: &str, on: bool) -> io::Result<()> {
    let names = names(device)?;
    let refused = || io::Error::from(Errno::EOPNOTSUPP);
    let index = names.iter().position(|name| name == feature).ok_or_else(refused)?;
    let mut words = vec![0; HEADER + 2 * names.len().div_ceil(BLOCK)];
    words[0] = SFEATURES;
    words[1] = names.len().div_ceil(BLOCK) as u32;
    // The changed bits and their new values.
    let block = HEADER + 2 * (index / BLOCK);
    words[block] = 1 << (index % BLOCK);
    words[block + 1] = u32::from(on) << (index % BLOCK);
    call(device, &mut words)?;
    match features(device)?.get(feature) {
        Some(now) if now.active == on => Ok(()),
        _ => Err(refused()),
    }
}

/// The names of all features, in the order of their bits.
fn names(device: &str) -> io::Result<Vec<String>> {
    // Command, reserved field, 64-bit mask of sets, and the size of the one requested set.
    let mut info = [GSSET_INFO, 0, 0, 0, 0];
    let mask = (1u64 << FEATURE_NAMES).to_ne_bytes();
    info[2] = u32::from_ne_bytes([mask[0], mask[1], mask[2], mask[3]]);
    info[3] = u32::from_ne_bytes([mask[4], mask[5], mask[6], mask[7]]);
    call(device, &mut info)?;
    let count = info[4] as usize;
    let mut words = vec![0; 3 + count * NAME_LEN / 4];
    words[..3].copy_from_slice(&[GSTRINGS, FEATURE_NAMES, count as u32]);
    call(device, &mut words)?;
    Ok(bytes_of(&words[3..]).chunks(NAME_LEN).map(text_of).collect())
}

/// Makes one request. The first word is the command.
///
/// `words` must have room for all output of that command. For names, this is the reported number.
/// The number of features is a constant of each kernel build.
fn call(device: &str, words: &mut [u32]) -> io::Result<()> {
    let mut ifr_name = [0; libc::IFNAMSIZ];
    if device.len() >= ifr_name.len() {
        return Err(Errno::ENODEV.into());
    }
    for (to, from) in ifr_name.iter_mut().zip(device.bytes()) {
        *to = from as c_char;
    }
    let ifr_ifru = libc::__c_anonymous_ifr_ifru { ifru_data: words.as_mut_ptr().cast() };
    let mut request = libc::ifreq { ifr_name, ifr_ifru };
    let fd = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    // SAFETY: SIOCETHTOOL reads the ifreq, and reads and writes the words at its pointer. Each
    // caller ensures that these have enough room for the command.
    let called = unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    Ok(Errno::result(called).map(drop)?)
}

fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn text_of(bytes: &[u8]) -> String {
    let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{testing::in_namespace, tun::Tun};

    #[test]
    fn driver_and_features_of_a_tun_are_listed_and_can_be_changed() {
        in_namespace(|_| {
            let (_recv, _send, info) = Tun::create("lr0", 1420, &Arc::default()).unwrap();
            assert_eq!(driver(&info.name).unwrap().name, "tun");
            for on in [false, true, false] {
                set_feature(&info.name, "rx-gro", on).unwrap();
                let features = features(&info.name).unwrap();
                assert_eq!(features["rx-gro"], Feature { active: on, changeable: true });
                // Features with bits before and after it, and in another block.
                assert!(features["tx-generic-segmentation"].active);
                assert!(!features["rx-gro-list"].active);
            }
        });
    }

    #[test]
    fn fixed_feature_and_missing_device_are_errors() {
        in_namespace(|_| {
            let errno = |result: io::Result<()>| crate::errno::errno(&result.unwrap_err());
            let unknown = set_feature("lo", "rx-gro-sideways", true);
            assert_eq!(errno(unknown), Some(Errno::EOPNOTSUPP));
            assert!(!features("lo").unwrap()["loopback"].changeable, "it is fixed on `lo`");
            assert_eq!(errno(set_feature("lo", "loopback", false)), Some(Errno::EOPNOTSUPP));
            for absent in ["eth9", "a-name-longer-than-any", ""] {
                assert_eq!(errno(features(absent).map(drop)), Some(Errno::ENODEV), "{absent:?}");
            }
        });
    }
}
