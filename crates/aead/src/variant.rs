//! Which code does the work.

use std::{env, error, fmt, sync::OnceLock};

use crate::{IS_SECURE, Open, Seal};
#[cfg(target_arch = "x86_64")]
use crate::{avx2::Avx2, avx512::Avx512, group};

/// Names a variant, or `auto`. What is no name, and what this processor cannot do, means
/// `library`.
const ENV: &str = "LINERATE_AEAD";

/// Code that seals and opens. All of it does the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Variant {
    /// ring, one packet after the other.
    Library,
    /// Our own, for AVX2.
    Avx2,
    /// Our own, for AVX-512 with IFMA and VBMI2: Intel's Ice Lake, AMD's Zen 4, and what
    /// came after.
    Avx512,
}

/// Which groups of a batch a variant is to do. The library does the others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Take {
    All,
    /// Those that it is worth it for.
    Worth,
}

impl Variant {
    /// All of them, the best one last.
    pub const ALL: [Self; 3] = [Self::Library, Self::Avx2, Self::Avx512];

    /// Whether this processor can do it.
    pub fn is_available(self) -> bool {
        match self {
            Self::Library => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => Avx2::new().is_some(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => Avx512::new().is_some(),
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// Seals the whole batch with this variant, be it worth it or not.
    ///
    /// # Panics
    /// The processor cannot do it, or a packet's data is shorter than a tag.
    pub fn seal(self, batch: &mut [Seal<'_>]) {
        assert!(self.is_available(), "this processor has no {self}");
        self.seal_some(batch, Take::All);
    }

    /// Opens the whole batch with this variant, be it worth it or not.
    ///
    /// # Panics
    /// The processor cannot do it.
    pub fn open(self, batch: &mut [Open<'_>]) {
        assert!(self.is_available(), "this processor has no {self}");
        self.open_some(batch, Take::All);
    }

    pub(crate) fn seal_some(self, batch: &mut [Seal<'_>], take: Take) {
        #[cfg(target_arch = "x86_64")]
        match (self, Avx512::new(), Avx2::new()) {
            (Self::Avx512, Some(simd), _) => return group::seal(simd, batch, take),
            (Self::Avx2, _, Some(simd)) => return group::seal(simd, batch, take),
            _ => {}
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = take;
        for packet in batch {
            packet.key.seal(packet.counter, packet.data);
        }
    }

    pub(crate) fn open_some(self, batch: &mut [Open<'_>], take: Take) {
        #[cfg(target_arch = "x86_64")]
        match (self, Avx512::new(), Avx2::new()) {
            (Self::Avx512, Some(simd), _) => return group::open(simd, batch, take),
            (Self::Avx2, _, Some(simd)) => return group::open(simd, batch, take),
            _ => {}
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = take;
        for packet in batch {
            packet.authentic = packet.key.open(packet.counter, packet.data);
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            _ if !IS_SECURE => "none",
            Self::Library => "library",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        })
    }
}

static CHOSEN: OnceLock<Variant> = OnceLock::new();

/// The variant in use: what was forced, or what the environment names, or the best that
/// the processor can do. Where it is not worth it, the library does the work.
pub fn variant() -> Variant {
    *CHOSEN.get_or_init(|| by_name(env::var(ENV)))
}

fn by_name(name: Result<String, env::VarError>) -> Variant {
    let mut available = Variant::ALL.into_iter().rev().filter(|variant| variant.is_available());
    let variant = match name {
        Err(env::VarError::NotPresent) => available.next(),
        Ok(name) if name == "auto" => available.next(),
        Ok(name) => available.find(|variant| variant.to_string() == name),
        Err(env::VarError::NotUnicode(_)) => None,
    };
    variant.unwrap_or(Variant::Library)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_none_means_the_library() {
        let named = |name: &str| by_name(Ok(name.to_owned()));
        assert_eq!(named("library"), Variant::Library);
        for wrong in ["", "libary", "AVX2", "avx512 ", "ring"] {
            assert_eq!(named(wrong), Variant::Library, "{wrong:?}");
        }
        for variant in Variant::ALL {
            let expected = if variant.is_available() { variant } else { Variant::Library };
            assert_eq!(named(&variant.to_string()), expected);
        }
        let best = by_name(Err(env::VarError::NotPresent));
        assert_eq!(named("auto"), best);
        assert!(
            Variant::ALL.into_iter().rev().find(|variant| variant.is_available()) == Some(best)
        );
    }
}
