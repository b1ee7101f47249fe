//! Selection of the implementation.

use std::{env, error, fmt, sync::OnceLock};

use crate::aead::{IS_SECURE, Open, Seal, Selection, library};
#[cfg(target_arch = "x86_64")]
use crate::aead::{avx2::Avx2, avx512::Avx512, group};

/// Name of a variant, or `auto`. An unknown name, or a variant that this processor does not
/// support, selects `library`.
const ENV: &str = "LINERATE_AEAD";

/// An implementation. All of them have the same results.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Variant {
    /// ring, one packet at a time.
    Library,
    /// Our implementation for AVX2.
    Avx2,
    /// Our implementation for AVX-512 with IFMA and VBMI2: Intel's Ice Lake, AMD's Zen 4 and later.
    Avx512,
}

impl Variant {
    /// All variants, the best one last.
    pub const ALL: [Self; 3] = [Self::Library, Self::Avx2, Self::Avx512];

    /// Whether this processor supports it.
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

    /// Seals the whole batch with this variant, even if the library is faster.
    ///
    /// # Panics
    /// If the processor does not support it, or a packet's data is shorter than a tag.
    pub fn seal(self, batch: &mut [Seal<'_>]) {
        assert!(self.is_available(), "this processor does not support {self}");
        self.seal_selected(batch, Selection::All);
    }

    /// Opens the whole batch with this variant, even if the library is faster.
    ///
    /// # Panics
    /// If the processor does not support it.
    pub fn open(self, batch: &mut [Open<'_>]) {
        assert!(self.is_available(), "this processor does not support {self}");
        self.open_selected(batch, Selection::All);
    }

    pub(in crate::aead) fn seal_selected(self, batch: &mut [Seal<'_>], selection: Selection) {
        #[cfg(target_arch = "x86_64")]
        match (self, Avx512::new(), Avx2::new()) {
            (Self::Avx512, Some(simd), _) => return group::seal(simd, batch, selection),
            (Self::Avx2, _, Some(simd)) => return group::seal(simd, batch, selection),
            _ => {}
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = selection;
        library::seal(batch);
    }

    pub(in crate::aead) fn open_selected(self, batch: &mut [Open<'_>], selection: Selection) {
        #[cfg(target_arch = "x86_64")]
        match (self, Avx512::new(), Avx2::new()) {
            (Self::Avx512, Some(simd), _) => return group::open(simd, batch, selection),
            (Self::Avx2, _, Some(simd)) => return group::open(simd, batch, selection),
            _ => {}
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = selection;
        library::open(batch);
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

/// Returns the variant in use: the one set by [`force`], or by the environment, or the best one
/// that the processor supports. Groups that it would slow down are left to the library.
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

/// Uses this variant from now on. Must be called before anything is sealed or opened.
///
/// # Errors
/// The processor does not support it, or another variant is in use already.
pub fn force(variant: Variant) -> Result<(), ForceError> {
    if !variant.is_available() {
        return Err(ForceError::NotAvailable(variant));
    }
    match *CHOSEN.get_or_init(|| variant) {
        chosen if chosen == variant => Ok(()),
        chosen => Err(ForceError::InUse(chosen)),
    }
}

/// Reason why a variant was not forced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ForceError {
    /// This processor does not support it.
    NotAvailable(Variant),
    /// This other variant is in use already.
    InUse(Variant),
}

impl fmt::Display for ForceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAvailable(variant) => write!(f, "this processor does not support {variant}"),
            Self::InUse(variant) => write!(f, "{variant} is in use already"),
        }
    }
}

impl error::Error for ForceError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_variant_name_selects_the_library() {
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
