#include "text/byte_chars.h"

#include "text/utf8.h"

uint32_t byte_char(uint8_t byte)
{
	if (byte <= 0x20) return 0x100u + byte;
	if (byte < 0x7F) return byte;
	if (byte <= 0xA0) return 0x121u + (byte - 0x7Fu);
	return byte == 0xAD ? 0x143u : byte;
}

int byte_of_char(uint32_t cp)
{
	if (cp >= 0x100) {
		if (cp <= 0x120) return (int)(cp - 0x100);
		if (cp <= 0x142) return (int)(cp - 0x121 + 0x7F);
		return cp == 0x143 ? 0xAD : -1;
	}
	return (cp > 0x20 && cp < 0x7F) || (cp > 0xA0 && cp != 0xAD) ? (int)cp : -1;
}

enum status byte_chars_append(struct buf *out, const char *bytes, size_t n, struct error *err)
{
	TRY(buf_reserve(out, n * 2, err));
	for (size_t i = 0; i < n; i++) out->size += utf8_encode(byte_char((uint8_t)bytes[i]), out->data + out->size);
	out->data[out->size] = 0;
	return STATUS_OK;
}
