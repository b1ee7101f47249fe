//! 64 bytes: one block of keystream, one AVX-512 register.

/// 64 bytes, aligned.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Row(pub(crate) [u8; 64]);

impl Default for Row {
    fn default() -> Self {
        Self([0; 64])
    }
}
