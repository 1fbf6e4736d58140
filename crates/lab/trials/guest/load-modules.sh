#!/bin/sh
# load-modules NAME...
# Loads kernel modules that are not loaded yet, in the order given: one that another needs comes before it.
set -e
for name; do
    test -d "/sys/module/$(echo "$name" | tr - _)" && continue
    xzcat "/lib/modules/$name.ko.xz" >"/run/$name.ko"
    insmod "/run/$name.ko"
    rm "/run/$name.ko"
done
