//! Which code does the work.

use std::{env, error, fmt, sync::OnceLock};

use crate::{Open, Seal};
#[cfg(target_arch = "x86_64")]
use crate::{avx512::Avx512, group};

/// Names a variant: `library`, `avx512` or `auto`. Anything else, and what this
/// processor cannot do, means `library`.
const ENV: &str = "LINERATE_AEAD";

/// Code that seals and opens; all do the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Variant {
    /// ring, one packet after the other.
    Library,
    /// Our own, for AVX-512 with IFMA.
    Avx512,
}

impl Variant {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Library, Self::Avx512];

    /// Whether this processor can do it.
    pub fn is_available(self) -> bool {
        match self {
            Self::Library => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => Avx512::new().is_some(),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx512 => false,
        }
    }

    /// Seals the whole batch with this variant.
    ///
    /// # Panics
    /// The processor cannot do it, or a packet's data is shorter than a tag.
    pub fn seal(self, batch: &mut [Seal<'_>]) {
        match self {
            Self::Library => {
                for packet in batch {
                    packet.key.seal(packet.counter, packet.data);
                }
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => group::seal(Avx512::new().expect(AVAILABLE), batch),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx512 => panic!("{AVAILABLE}"),
        }
    }

    /// Opens the whole batch with this variant.
    ///
    /// # Panics
    /// The processor cannot do it.
    pub fn open(self, batch: &mut [Open<'_>]) {
        match self {
            Self::Library => {
                for packet in batch {
                    packet.authentic = packet.key.open(packet.counter, packet.data);
                }
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => group::open(Avx512::new().expect(AVAILABLE), batch),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx512 => panic!("{AVAILABLE}"),
        }
    }

    /// Of a batch, how many packets the variant is worth it for.
    pub(crate) fn worth(self, packets: usize) -> usize {
        let rest = packets % 16;
        match self {
            Self::Avx512 if rest < 4 => packets - rest,
            Self::Library | Self::Avx512 => packets,
        }
    }
}

const AVAILABLE: &str = "the variant is available";

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Library => "library",
            Self::Avx512 => "avx512",
        })
    }
}

static CHOSEN: OnceLock<Variant> = OnceLock::new();

/// The variant in use: what was forced, or what the environment names, or the best
/// that the processor can do.
pub fn variant() -> Variant {
    *CHOSEN.get_or_init(|| match env::var(ENV) {
        Err(env::VarError::NotPresent) => best(),
        Ok(name) if name == "auto" => best(),
        name => Variant::ALL
            .into_iter()
            .find(|variant| variant.is_available() && name == Ok(variant.to_string()))
            .unwrap_or(Variant::Library),
    })
}

fn best() -> Variant {
    let best = Variant::ALL.into_iter().rev().find(|variant| variant.is_available());
    best.unwrap_or(Variant::Library)
}

/// Takes this variant from now on. To be called before anything is sealed or opened.
///
/// # Errors
/// The processor cannot do it, or another one is in use already.
pub fn force(variant: Variant) -> Result<(), ForceError> {
    if !variant.is_available() {
        return Err(ForceError::NotAvailable(variant));
    }
    match *CHOSEN.get_or_init(|| variant) {
        chosen if chosen == variant => Ok(()),
        chosen => Err(ForceError::InUse(chosen)),
    }
}

/// Why a variant was not forced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ForceError {
    /// This processor cannot do it.
    NotAvailable(Variant),
    /// This one is in use already.
    InUse(Variant),
}

impl fmt::Display for ForceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAvailable(variant) => write!(f, "this processor has no {variant}"),
            Self::InUse(variant) => write!(f, "{variant} is in use already"),
        }
    }
}

impl error::Error for ForceError {}
