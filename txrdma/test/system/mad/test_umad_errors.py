"""Numbers of the ioctl calls of kernel management ports."""

from __future__ import annotations

import shutil
import struct
import subprocess

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.mad.ports import registration
from txrdma.mad.ports.registration import ioctlNumber


class NumberTests(SynchronousTestCase):
    def test_machines(self) -> None:
        """The numbers equal those of the kernel's headers on all architectures."""
        for machines, unregister in (
            ("x86_64 aarch64 i686 armv7l riscv64 s390x loongarch64", 0x40041B02),
            ("ppc64le ppc64 ppc mips64 sparc64 alpha parisc64", 0x80041B02),
        ):
            for machine in machines.split():
                self.assertEqual(ioctlNumber(3, 4, 40, machine), 0xC0281B04, machine)
                self.assertEqual(ioctlNumber(1, 2, 4, machine), unregister, machine)
        for machine, number in (("x86_64", 0x1B03), ("parisc", 0x1B03), ("ppc64", 0x20001B03)):
            self.assertEqual(ioctlNumber(0, 3, 0, machine), number)
        self.assertEqual(ioctlNumber(2, 1, 0x1000, "x86_64"), 0x90001B01)
        self.assertEqual(ioctlNumber(2, 1, 0x1000, "ppc64"), 0x50001B01)
        self.assertEqual(ioctlNumber(2, 1, 0x1000, "parisc"), 0x50001B01)

    def test_thisMachine(self) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            raise SkipTest("there is no C compiler here")
        source = """
            #include <stdio.h>
            #include <linux/types.h>
            #include <linux/ioctl.h>
            typedef unsigned long __attribute__((aligned(4))) mask;
            struct one { __u32 id; mask methods[16 / sizeof(long)]; __u8 rest[8]; };
            struct two { __u32 words[4]; __u64 mask[2]; __u32 oui; __u8 version; __u8 rest[3]; };
            int main(void) {
                printf("%u %u %u %u", (unsigned)_IOWR(0x1b, 1, struct one), (unsigned)_IOW(0x1b, 2, __u32),
                    (unsigned)_IO(0x1b, 3), (unsigned)_IOWR(0x1b, 4, struct two));
                return 0;
            }
        """
        program = f"{self.mktemp()}.numbers"
        built = subprocess.run(
            [compiler, "-x", "c", "-", "-o", program], input=source.encode(), capture_output=True
        )
        if built.returncode:
            raise SkipTest("there are no headers of the kernel here")
        reported = subprocess.run([f"./{program}"], capture_output=True, check=True).stdout.split()
        actual = (
            registration.REGISTER_AGENT,
            registration.UNREGISTER_AGENT,
            registration.ENABLE_PKEY,
            registration.REGISTER_AGENT2,
        )
        self.assertEqual(tuple(int(number) for number in reported), actual)

    def test_otherMachines(self) -> None:
        """The bit masks of methods depend on the size of long and on the byte order."""
        methods, mine = 1 << 3 | 1 << 34 | 1 << 70, registration._LONG_BITS
        for layout, bits, expected in (
            (">I4IBBB3sBx", 32, "00000008 00000004 00000040 00000000"),
            ("<I4IBBB3sBx", 32, "08000000 04000000 40000000 00000000"),
            (">I2QBBB3sBx", 64, "0000000400000008 0000000000000040"),
            ("<I2QBBB3sBx", 64, "0800000004000000 4000000000000000"),
        ):
            asked: list[bytes] = []
            self.patch(registration, "_REGISTER", struct.Struct(layout))
            self.patch(registration, "_LONG_BITS", bits)
            self.patch(
                registration, "ioctl", lambda fd, number, asking, change, to=asked: to.append(bytes(asking))
            )
            registration.Registry(5)._register(1, 3, 2, methods, 0, True)
            self.assertEqual(asked, [bytes(4) + bytes.fromhex(expected) + bytes((1, 3, 2, 0, 0, 0, 1, 0))])
        self.assertIn(mine, (32, 64))
